"""Provide the names of Torch-TensorRT's Dynamo and FX frontends with which users write converters.
Import from ``pipeline.compat.torch_tensorrt`` instead of ``torch_tensorrt.dynamo.conversion``, ``.dynamo`` or ``.fx``.

Importing or calling these names changes no global state: add a declared converter to a registry with ``register``.
"""

from typing import TypeAlias

from pipeline.aten.support import CallingConvention, ConverterPriority, ConverterSupport, Target
from pipeline.aten.types import Argument
from pipeline.compat.torch_tensorrt import acc_ops, converter_utils, impl
from pipeline.compat.torch_tensorrt.blocks import BlockError
from pipeline.compat.torch_tensorrt.converter_utils import (
    args_bounds_check,
    cast_trt_tensor,
    enforce_tensor_types,
    get_positive_dim,
    get_trt_tensor,
    has_dynamic_shapes,
    has_dynamic_shapes_in_args,
    has_static_shapes,
    has_static_shapes_in_args,
    set_layer_name,
)
from pipeline.compat.torch_tensorrt.fx import CONVERTERS, tensorrt_converter
from pipeline.compat.torch_tensorrt.values import SourceIR
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.converters.registry import ConverterRegistry, dynamo_tensorrt_converter
from pipeline.converters.support import get_graph_converter_support
from pipeline.converters.types import TRTLayer, TRTNetwork, TRTTensor
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

ConversionCtx: TypeAlias = ConversionContext

__all__ = [
    "CONVERTERS",
    "DECOMPOSITIONS",
    "DYNAMO_CONVERTERS",
    "Argument",
    "BlockError",
    "CallingConvention",
    "CompilationSettings",
    "ConversionContext",
    "ConversionCtx",
    "ConverterPriority",
    "ConverterRegistry",
    "ConverterSupport",
    "SourceIR",
    "TRTLayer",
    "TRTNetwork",
    "TRTTensor",
    "Target",
    "acc_ops",
    "args_bounds_check",
    "cast_trt_tensor",
    "converter_utils",
    "dynamo_tensorrt_converter",
    "enforce_tensor_types",
    "get_graph_converter_support",
    "get_positive_dim",
    "get_trt_tensor",
    "has_dynamic_shapes",
    "has_dynamic_shapes_in_args",
    "has_static_shapes",
    "has_static_shapes_in_args",
    "impl",
    "register_torch_trt_decomposition",
    "set_layer_name",
    "tensorrt_converter",
]
