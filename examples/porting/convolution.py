"""A convolution whose weights are numpy arrays, by `enforce_tensor_types`.

import tensorrt as trt
from torch_tensorrt.dynamo.conversion import ConversionContext, ConverterPriority, dynamo_tensorrt_converter
from torch_tensorrt.dynamo.conversion.converter_utils import enforce_tensor_types, set_layer_name
from torch_tensorrt.dynamo.types import TRTTensor
"""

import numpy as np
import torch

from pipeline.compat.torch_tensorrt import (
    ConversionContext,
    ConverterPriority,
    TRTTensor,
    dynamo_tensorrt_converter,
)
from pipeline.compat.torch_tensorrt.converter_utils import enforce_tensor_types, set_layer_name
from pipeline.trt import trt


def is_plain(node, settings=None):
    """Whether a call is no transposed convolution, and has a bias."""
    return not node.args[6] and node.args[2] is not None


@dynamo_tensorrt_converter(
    torch.ops.aten.convolution.default,
    capability_validator=is_plain,
    priority=ConverterPriority.HIGH,
    supports_dynamic_shapes=True,
)
@enforce_tensor_types({0: (TRTTensor,), 1: (np.ndarray,), 2: (np.ndarray,)})
def convolution(ctx: ConversionContext, target, args, kwargs, name):
    """One layer over the arrays."""
    x, weight, bias, stride, padding, dilation = args[:6]
    layer = ctx.net.add_convolution_nd(
        x, weight.shape[0], trt.Dims(weight.shape[2:]), kernel=trt.Weights(weight), bias=trt.Weights(bias)
    )
    layer.stride_nd, layer.padding_nd, layer.dilation_nd = tuple(stride), tuple(padding), tuple(dilation)
    layer.num_groups = args[8]
    set_layer_name(layer, target, name)
    return layer.get_output(0)
