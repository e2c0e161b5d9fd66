"""pipeline: compile PyTorch models to TensorRT engines by composing pure stages over frozen records.

import pipeline

compiled = pipeline.compile(model, args=(x,))
y = compiled(x)
"""

import importlib
import importlib.util
import sys
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Final

from pipeline.artifact import run_op as _run_op  # noqa: F401 - defines torch.ops.pipeline.run
from pipeline.version import __version__

if TYPE_CHECKING:
    from pipeline.artifact.engine_cache_stage import cached
    from pipeline.artifact.engine_store import DiskStore, EngineStore, FsspecStore
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

_PLACES: Final = MappingProxyType(
    {
        "pipeline.artifact.engine_cache_stage": "cached",
        "pipeline.artifact.engine_store": "DiskStore EngineStore FsspecStore",
        "pipeline.artifact.load": "load",
        "pipeline.artifact.refit": "refit_module_weights",
        "pipeline.compiled": "Compiled",
        "pipeline.compose.ledger": "Ledger",
        "pipeline.compose.pipelines": "Event Pipeline report stage",
        "pipeline.converters": "DECOMPOSITIONS DYNAMO_CONVERTERS",
        "pipeline.converters.decompositions": "register_torch_trt_decomposition",
        "pipeline.converters.registry": (
            "CallingConvention ConverterPriority ConverterRegistry ConverterSupport Rejection dynamo_tensorrt_converter"
        ),
        "pipeline.converters.support": "get_graph_converter_support",
        "pipeline.defaults": "bisect compile default",
        "pipeline.dynamo": "backend",
        "pipeline.errors": (
            "AgreementError AgreementWarning ArtifactError ArtifactWarning BuildError CalibrationError "
            "CaptureError ConversionError CoverageWarning DecisionError DtypeError ExecutionError Fallback "
            "PipelineError QuantizationError RefitError ShapeError UnreachedWarning UnsupportedOperatorException "
            "VersionWarning"
        ),
        "pipeline.export_fixes.call_recorder": "Calls recorded",
        "pipeline.capture.capture": "capture",
        "pipeline.frozen": "FrozenDict",
        "pipeline.inputs": "Constant Input",
        "pipeline.network.context": "ConversionContext",
        "pipeline.program": "Built Converted Partitioned Program Validated",
        "pipeline.records.agreement": "Agreement",
        "pipeline.settings": "CompilationSettings",
        "pipeline.stages.autocast": "autocast",
        "pipeline.stages.outside": "engine_per_profile shared_weights",
        "pipeline.stages.partition": "Partitioner by_submodule in_pieces",
        "pipeline.stages.quantize": "quantize",
        "pipeline.stages.verify": "verify",
        "pipeline.verification.records": "Bisection",
    }
)
"""The public names by the modules that define them, which are imported when a name is first asked for."""
_MODULES: Final = MappingProxyType({name: module for module, names in _PLACES.items() for name in names.split()})


class _Public(ModuleType):
    """The package as a module, whose public names are imported when they are first asked for."""

    def __getattr__(self, name: str) -> object:
        if name not in _MODULES:
            if name.startswith("_") or importlib.util.find_spec(f"pipeline.{name}") is None:
                raise AttributeError(f"module 'pipeline' has no attribute {name!r}", name=name, obj=self)
            return importlib.import_module(f"pipeline.{name}")
        value: object = getattr(importlib.import_module(_MODULES[name]), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Keep the public name where a room is called the same: importing the room would set it to the module."""
        if name not in _MODULES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Pickle the package by its name, as cloudpickle (Ray, Dask) does with plain modules that a function uses."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Public
