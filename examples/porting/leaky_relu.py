"""Two converters of leaky_relu: one adds TensorRT's layer itself, the other takes a building block.

import tensorrt as trt
from torch_tensorrt.dynamo._SourceIR import SourceIR
from torch_tensorrt.dynamo.conversion import ConversionCtx, ConverterPriority, dynamo_tensorrt_converter, impl
from torch_tensorrt.dynamo.conversion.aten_ops_converters import args_bounds_check
from torch_tensorrt.fx.converters.converter_utils import set_layer_name
"""

import torch

from pipeline.compat.torch_tensorrt import (
    ConversionCtx,
    ConverterPriority,
    SourceIR,
    dynamo_tensorrt_converter,
    impl,
)
from pipeline.compat.torch_tensorrt.converter_utils import args_bounds_check, set_layer_name
from pipeline.trt import trt


@dynamo_tensorrt_converter(torch.ops.aten.leaky_relu.default, priority=ConverterPriority.HIGH)
def by_layer(ctx: ConversionCtx, target, args, kwargs, name):
    """The layer as TensorRT has it."""
    layer = ctx.net.add_activation(args[0], trt.ActivationType.LEAKY_RELU)
    layer.alpha = args_bounds_check(args, 1, 0.01)
    set_layer_name(layer, target, name, SourceIR.ATEN)
    return layer.get_output(0)


@dynamo_tensorrt_converter(
    torch.ops.aten.leaky_relu.default, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True
)
def by_block(ctx: ConversionCtx, target, args, kwargs, name):
    """The building block."""
    return impl.activation.leaky_relu(ctx, target, SourceIR.ATEN, name, args[0], args_bounds_check(args, 1, 0.01))
