"""A converter of one of gelu's two forms, which a validator tells apart.

from torch_tensorrt.dynamo._SourceIR import SourceIR
from torch_tensorrt.dynamo.conversion import (
    ConversionContext, ConverterPriority, dynamo_tensorrt_converter, impl)
"""

import math

import torch

from pipeline.compat.torch_tensorrt import (
    ConversionContext,
    ConverterPriority,
    SourceIR,
    dynamo_tensorrt_converter,
    impl,
)


def is_tanh(node, settings=None):
    """Whether a call asks for the approximation."""
    return node.kwargs.get("approximate") == "tanh"


@dynamo_tensorrt_converter(
    torch.ops.aten.gelu.default,
    capability_validator=is_tanh,
    priority=ConverterPriority.HIGH,
    supports_dynamic_shapes=True,
)
def gelu_by_tanh(ctx: ConversionContext, target, args, kwargs, name):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³)))"""
    x, ir = args[0], SourceIR.ATEN
    cube = impl.elementwise.pow(ctx, target, ir, f"{name}_cube", x, 3)
    scaled = impl.elementwise.mul(ctx, target, ir, f"{name}_scaled", cube, 0.044715)
    inner = impl.elementwise.add(ctx, target, name=f"{name}_inner", source_ir=ir, lhs_val=x, rhs_val=scaled)
    argument = impl.elementwise.mul(ctx, target, ir, f"{name}_argument", inner, math.sqrt(2 / math.pi))
    tanh = impl.activation.tanh(ctx, target, ir, f"{name}_tanh", argument)
    above = impl.elementwise.add(ctx, target, ir, f"{name}_above", tanh, 1.0)
    half = impl.elementwise.mul(ctx, target, ir, f"{name}_half", x, 0.5)
    return impl.elementwise.mul(ctx, target, ir, name, half, above)
