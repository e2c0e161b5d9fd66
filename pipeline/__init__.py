"""pipeline: compile PyTorch models to TensorRT engines by stages, pure functions that pass on frozen records.

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
from pipeline.version import __version__ as __version__

if TYPE_CHECKING:
    from pipeline.artifact.engine_cache_stage import cached as cached
    from pipeline.artifact.engine_store import DiskStore as DiskStore
    from pipeline.artifact.engine_store import EngineStore as EngineStore
    from pipeline.artifact.engine_store import FsspecStore as FsspecStore
    from pipeline.artifact.load import load as load
    from pipeline.artifact.refit import refit_module_weights as refit_module_weights
    from pipeline.capture.capture import capture as capture
    from pipeline.compiled import Compiled as Compiled
    from pipeline.compose.ledger import Ledger as Ledger
    from pipeline.compose.pipelines import Event as Event
    from pipeline.compose.pipelines import Pipeline as Pipeline
    from pipeline.compose.pipelines import report as report
    from pipeline.compose.pipelines import stage as stage
    from pipeline.converters import DECOMPOSITIONS as DECOMPOSITIONS
    from pipeline.converters import DYNAMO_CONVERTERS as DYNAMO_CONVERTERS
    from pipeline.converters.decompositions import register_torch_trt_decomposition as register_torch_trt_decomposition
    from pipeline.converters.registry import CallingConvention as CallingConvention
    from pipeline.converters.registry import ConverterPriority as ConverterPriority
    from pipeline.converters.registry import ConverterRegistry as ConverterRegistry
    from pipeline.converters.registry import ConverterSupport as ConverterSupport
    from pipeline.converters.registry import Rejection as Rejection
    from pipeline.converters.registry import dynamo_tensorrt_converter as dynamo_tensorrt_converter
    from pipeline.converters.support import get_graph_converter_support as get_graph_converter_support
    from pipeline.defaults import bisect as bisect
    from pipeline.defaults import compile as compile
    from pipeline.defaults import default as default
    from pipeline.dynamo import backend as backend
    from pipeline.errors import AgreementError as AgreementError
    from pipeline.errors import AgreementWarning as AgreementWarning
    from pipeline.errors import ArtifactError as ArtifactError
    from pipeline.errors import ArtifactWarning as ArtifactWarning
    from pipeline.errors import BuildError as BuildError
    from pipeline.errors import CalibrationError as CalibrationError
    from pipeline.errors import CaptureError as CaptureError
    from pipeline.errors import ConversionError as ConversionError
    from pipeline.errors import CoverageWarning as CoverageWarning
    from pipeline.errors import DecisionError as DecisionError
    from pipeline.errors import DtypeError as DtypeError
    from pipeline.errors import ExecutionError as ExecutionError
    from pipeline.errors import Fallback as Fallback
    from pipeline.errors import PipelineError as PipelineError
    from pipeline.errors import QuantizationError as QuantizationError
    from pipeline.errors import RefitError as RefitError
    from pipeline.errors import ShapeError as ShapeError
    from pipeline.errors import UnreachedWarning as UnreachedWarning
    from pipeline.errors import UnsupportedOperatorException as UnsupportedOperatorException
    from pipeline.errors import VersionWarning as VersionWarning
    from pipeline.export_fixes.call_recorder import Calls as Calls
    from pipeline.export_fixes.call_recorder import recorded as recorded
    from pipeline.frozen import FrozenDict as FrozenDict
    from pipeline.inputs import Constant as Constant
    from pipeline.inputs import Input as Input
    from pipeline.network.context import ConversionContext as ConversionContext
    from pipeline.program import Built as Built
    from pipeline.program import Converted as Converted
    from pipeline.program import Partitioned as Partitioned
    from pipeline.program import Program as Program
    from pipeline.program import Validated as Validated
    from pipeline.records.agreement import Agreement as Agreement
    from pipeline.settings import CompilationSettings as CompilationSettings
    from pipeline.stages.autocast import autocast as autocast
    from pipeline.stages.outside import engine_per_profile as engine_per_profile
    from pipeline.stages.outside import shared_weights as shared_weights
    from pipeline.stages.partition import Partitioner as Partitioner
    from pipeline.stages.partition import by_submodule as by_submodule
    from pipeline.stages.partition import in_pieces as in_pieces
    from pipeline.stages.quantize import quantize as quantize
    from pipeline.stages.verify import verify as verify
    from pipeline.verification.records import Bisection as Bisection

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
"""The public names of each module; a module is imported at the first access to one of its names."""
_MODULES: Final = MappingProxyType({name: module for module, names in _PLACES.items() for name in names.split()})

if not TYPE_CHECKING:
    __all__ = sorted(("__version__", *_MODULES))


class _Public(ModuleType):
    """The package's module class, which imports a public name at its first use."""

    def __getattr__(self, name: str) -> object:
        if name not in _MODULES:
            if name.startswith("_") or importlib.util.find_spec(f"pipeline.{name}") is None:
                raise AttributeError(f"module 'pipeline' has no attribute {name!r}", name=name, obj=self)
            return importlib.import_module(f"pipeline.{name}")
        value: object = getattr(importlib.import_module(_MODULES[name]), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Ignore the import system's attempt to replace a public name by the subpackage of the same name."""
        if name not in _MODULES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_MODULES})

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Pickle the package by its name; cloudpickle (Ray, Dask) does so only for plain ``ModuleType`` objects."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Public
