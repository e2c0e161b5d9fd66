"""Provide the names of Torch-TensorRT's Dynamo and FX frontends with which users write converters.
Import from ``pipeline.compat.torch_tensorrt`` instead of ``torch_tensorrt.dynamo.conversion``, ``.dynamo`` or ``.fx``.

Importing or calling these names changes no global state: add a declared converter to a registry with ``register``.
"""

from typing import TypeAlias

from pipeline.aten.support import CallingConvention as CallingConvention
from pipeline.aten.support import ConverterPriority as ConverterPriority
from pipeline.aten.support import ConverterSupport as ConverterSupport
from pipeline.aten.support import Target as Target
from pipeline.aten.types import Argument as Argument
from pipeline.compat.torch_tensorrt import acc_ops as acc_ops
from pipeline.compat.torch_tensorrt import converter_utils as converter_utils
from pipeline.compat.torch_tensorrt import impl as impl
from pipeline.compat.torch_tensorrt.blocks import BlockError as BlockError
from pipeline.compat.torch_tensorrt.converter_utils import args_bounds_check as args_bounds_check
from pipeline.compat.torch_tensorrt.converter_utils import cast_trt_tensor as cast_trt_tensor
from pipeline.compat.torch_tensorrt.converter_utils import enforce_tensor_types as enforce_tensor_types
from pipeline.compat.torch_tensorrt.converter_utils import get_positive_dim as get_positive_dim
from pipeline.compat.torch_tensorrt.converter_utils import get_trt_tensor as get_trt_tensor
from pipeline.compat.torch_tensorrt.converter_utils import has_dynamic_shapes as has_dynamic_shapes
from pipeline.compat.torch_tensorrt.converter_utils import has_dynamic_shapes_in_args as has_dynamic_shapes_in_args
from pipeline.compat.torch_tensorrt.converter_utils import has_static_shapes as has_static_shapes
from pipeline.compat.torch_tensorrt.converter_utils import has_static_shapes_in_args as has_static_shapes_in_args
from pipeline.compat.torch_tensorrt.converter_utils import set_layer_name as set_layer_name
from pipeline.compat.torch_tensorrt.fx import CONVERTERS as CONVERTERS
from pipeline.compat.torch_tensorrt.fx import tensorrt_converter as tensorrt_converter
from pipeline.compat.torch_tensorrt.values import SourceIR as SourceIR
from pipeline.converters import DECOMPOSITIONS as DECOMPOSITIONS
from pipeline.converters import DYNAMO_CONVERTERS as DYNAMO_CONVERTERS
from pipeline.converters.decompositions import register_torch_trt_decomposition as register_torch_trt_decomposition
from pipeline.converters.registry import ConverterRegistry as ConverterRegistry
from pipeline.converters.registry import dynamo_tensorrt_converter as dynamo_tensorrt_converter
from pipeline.converters.support import get_graph_converter_support as get_graph_converter_support
from pipeline.converters.types import TRTLayer as TRTLayer
from pipeline.converters.types import TRTNetwork as TRTNetwork
from pipeline.converters.types import TRTTensor as TRTTensor
from pipeline.network.context import ConversionContext as ConversionContext
from pipeline.settings import CompilationSettings as CompilationSettings

ConversionCtx: TypeAlias = ConversionContext
