"""FX's leaky_relu.

import torch_tensorrt.fx.tracer.acc_tracer.acc_ops as acc_ops
from torch_tensorrt.dynamo._SourceIR import SourceIR
from torch_tensorrt.fx.converter_registry import tensorrt_converter
from torch_tensorrt.fx.converters.impl import activation
from torch_tensorrt.fx.types import TRTNetwork
"""

from pipeline.compat.torch_tensorrt import SourceIR, TRTNetwork, acc_ops, tensorrt_converter
from pipeline.compat.torch_tensorrt.impl import activation


@tensorrt_converter(acc_ops.leaky_relu)
def leaky_relu(network: TRTNetwork, target, args, kwargs, name):
    """The building block, given the network."""
    return activation.leaky_relu(network, target, SourceIR.ACC, name, kwargs["input"], kwargs["negative_slope"])
