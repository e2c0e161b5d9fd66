"""FX's linear: a product with the transposed weight, and a sum.

import tensorrt as trt
import torch_tensorrt.fx.tracer.acc_tracer.acc_ops as acc_ops
from torch_tensorrt.fx.converter_registry import tensorrt_converter
from torch_tensorrt.fx.converters.converter_utils import broadcast, get_trt_tensor, set_layer_name
from torch_tensorrt.fx.types import TRTNetwork, TRTTensor
"""

from pipeline.compat.torch_tensorrt import TRTNetwork, TRTTensor, acc_ops, tensorrt_converter
from pipeline.compat.torch_tensorrt.converter_utils import broadcast, get_trt_tensor, set_layer_name
from pipeline.trt import trt


@tensorrt_converter(acc_ops.linear)
def linear(network: TRTNetwork, target, args, kwargs, name) -> TRTTensor:
    """x Wᵀ + b"""
    x = kwargs["input"]
    if not isinstance(x, TRTTensor):
        raise RuntimeError(f"linear received {x}, which is no part of the TensorRT region")
    weight = get_trt_tensor(network, kwargs["weight"].t(), f"{name}_weight")
    x, weight = broadcast(network, x, weight, f"{name}_input", f"{name}_weight")
    none = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, none, weight, none)
    set_layer_name(product, target, f"{name}_matmul")
    if kwargs["bias"] is None:
        return product.get_output(0)
    bias = get_trt_tensor(network, kwargs["bias"], f"{name}_bias")
    y, bias = broadcast(network, product.get_output(0), bias, f"{name}_product", f"{name}_bias")
    added = network.add_elementwise(y, bias, trt.ElementWiseOperation.SUM)
    set_layer_name(added, target, f"{name}_add")
    return added.get_output(0)
