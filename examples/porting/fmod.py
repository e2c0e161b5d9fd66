"""fmod by numbers and by tensors, with the building block.

from torch_tensorrt.dynamo._SourceIR import SourceIR
from torch_tensorrt.dynamo.conversion import ConversionContext, ConverterPriority, dynamo_tensorrt_converter, impl
"""

import torch

from pipeline.compat.torch_tensorrt import (
    ConversionContext,
    ConverterPriority,
    SourceIR,
    dynamo_tensorrt_converter,
    impl,
)


@dynamo_tensorrt_converter(torch.ops.aten.fmod.Scalar, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(torch.ops.aten.fmod.Tensor, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True)
def fmod(ctx: ConversionContext, target, args, kwargs, name):
    """What is left of a division towards zero; the divisor may be a number."""
    return impl.elementwise.fmod(ctx, target, SourceIR.ATEN, name, args[0], args[1])
