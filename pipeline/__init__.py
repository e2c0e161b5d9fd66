"""pipeline: compile PyTorch models to TensorRT engines by composing pure stages over frozen records.

import pipeline

compiled = pipeline.compile(model, args=(x,))
y = compiled(x)
"""

from pipeline import api as _api  # noqa: F401 - binds methods of Compiled, defines torch.ops.pipeline.run
from pipeline.artifact.engine_cache_stage import cached
from pipeline.artifact.engine_fsspec import FsspecStore
from pipeline.artifact.engine_store import DiskStore, EngineStore
from pipeline.artifact.load import load
from pipeline.artifact.refit import refit_module_weights
from pipeline.capture.capture import capture
from pipeline.compiled import Compiled
from pipeline.compose.ledger import Ledger
from pipeline.compose.pipelines import Event, Pipeline, report, stage
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.converters.registry import (
    CallingConvention,
    ConverterPriority,
    ConverterRegistry,
    ConverterSupport,
    Rejection,
    dynamo_tensorrt_converter,
)
from pipeline.converters.support import get_graph_converter_support
from pipeline.defaults import bisect, compile, default
from pipeline.dynamo import backend
from pipeline.errors import (
    AgreementError,
    AgreementWarning,
    ArtifactError,
    ArtifactWarning,
    BuildError,
    CalibrationError,
    CaptureError,
    ConversionError,
    CoverageWarning,
    DecisionError,
    DtypeError,
    ExecutionError,
    Fallback,
    PipelineError,
    QuantizationError,
    RefitError,
    ShapeError,
    UnreachedWarning,
    UnsupportedOperatorException,
    VersionWarning,
)
from pipeline.export_fixes.call_recorder import Calls, recorded
from pipeline.frozen import FrozenDict
from pipeline.inputs import Constant, Input
from pipeline.network.context import ConversionContext
from pipeline.program import Built, Converted, Partitioned, Program, Validated
from pipeline.records.agreement import Agreement
from pipeline.settings import CompilationSettings
from pipeline.stages.autocast import autocast
from pipeline.stages.outside import engine_per_profile, shared_weights
from pipeline.stages.partition import Partitioner, by_submodule, in_pieces
from pipeline.stages.quantize import quantize
from pipeline.stages.verify import verify
from pipeline.verification.records import Bisection
from pipeline.version import __version__

__all__ = [
    "DECOMPOSITIONS",
    "DYNAMO_CONVERTERS",
    "Agreement",
    "AgreementError",
    "AgreementWarning",
    "ArtifactError",
    "ArtifactWarning",
    "Bisection",
    "BuildError",
    "Built",
    "CalibrationError",
    "CallingConvention",
    "Calls",
    "CaptureError",
    "CompilationSettings",
    "Compiled",
    "Constant",
    "ConversionContext",
    "ConversionError",
    "Converted",
    "ConverterPriority",
    "ConverterRegistry",
    "ConverterSupport",
    "CoverageWarning",
    "DecisionError",
    "DiskStore",
    "DtypeError",
    "EngineStore",
    "Event",
    "ExecutionError",
    "Fallback",
    "FrozenDict",
    "FsspecStore",
    "Input",
    "Ledger",
    "Partitioned",
    "Partitioner",
    "Pipeline",
    "PipelineError",
    "Program",
    "QuantizationError",
    "RefitError",
    "Rejection",
    "ShapeError",
    "UnreachedWarning",
    "UnsupportedOperatorException",
    "Validated",
    "VersionWarning",
    "__version__",
    "autocast",
    "backend",
    "bisect",
    "by_submodule",
    "cached",
    "capture",
    "compile",
    "default",
    "dynamo_tensorrt_converter",
    "engine_per_profile",
    "get_graph_converter_support",
    "in_pieces",
    "load",
    "quantize",
    "recorded",
    "refit_module_weights",
    "register_torch_trt_decomposition",
    "report",
    "shared_weights",
    "stage",
    "verify",
]
