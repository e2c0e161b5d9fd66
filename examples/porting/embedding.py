"""An embedding that records its table by a name of its own.

import tensorrt as trt
from torch_tensorrt.dynamo.conversion import ConversionContext, ConverterPriority, dynamo_tensorrt_converter
from torch_tensorrt.dynamo.conversion.converter_utils import set_layer_name
"""

import torch

from pipeline.compat.torch_tensorrt import ConversionContext, ConverterPriority, dynamo_tensorrt_converter
from pipeline.compat.torch_tensorrt.converter_utils import set_layer_name
from pipeline.trt import trt


@dynamo_tensorrt_converter(
    torch.ops.aten.embedding.default, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True
)
def embedding(ctx: ConversionContext, target, args, kwargs, name):
    """Rows of the table, gathered."""
    table, indices = args[0], args[1]
    ctx.record_weight(f"{name} TABLE", table)
    weights = trt.Weights(trt.float32, table.data_ptr(), table.numel())
    constant = ctx.net.add_constant(tuple(table.shape), weights)
    set_layer_name(constant, target, f"{name}_table")
    layer = ctx.net.add_gather(constant.get_output(0), indices, axis=0)
    set_layer_name(layer, target, name)
    return layer.get_output(0)
