"""Convert functions of one tensor, including activation functions, log-sum-exp, softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pipeline.converters.binding import aten, call_block, cast_to_result, converts
from pipeline.impl import activation, base, elementwise, elementwise_arithmetic, unary
from pipeline.impl import softmax as impl
from pipeline.impl.base import ITensor, Net, Value
from pipeline.impl.reduce import cumulative_log_sum_exp, log_sum_exp

REAL = "exp log sqrt sin cos tan sinh cosh asin acos atan asinh acosh atanh"
"""Functions of floating-point tensors that have the same name in TensorRT as in ATen."""

TABLE: Mapping[Any, tuple[Any, ...]] = {
    **{getattr(aten, name).default: (unary.real, name.upper()) for name in REAL.split()},
    aten.reciprocal.default: (unary.real, "RECIP"),
    aten.erf.default: (activation.erf,),
    aten.abs.default: (unary.signed_function, "ABS"),
    aten.neg.default: (unary.signed_function, "NEG"),
    aten.sign.default: (unary.sign,),
    aten.ceil.default: (unary.rounding_function, "CEIL"),
    aten.floor.default: (unary.rounding_function, "FLOOR"),
    aten.round.default: (unary.rounding_function, "ROUND"),
    aten.round.decimals: (unary.round_decimals,),
    aten.trunc.default: (unary.truncate,),
    aten.isnan.default: (unary.is_nan_or_infinite, "ISNAN"),
    aten.isinf.default: (unary.is_nan_or_infinite, "ISINF"),
    aten.rsqrt.default: (unary.rsqrt,),
    aten.log2.default: (unary.logarithm, 2.0),
    aten.log10.default: (unary.logarithm, 10.0),
    aten.log1p.default: (unary.log1p,),
    aten.expm1.default: (unary.expm1,),
    aten.exp2.default: (elementwise_arithmetic.power, 2.0),
    aten.logical_not.default: (elementwise.logical_not,),
    aten.bitwise_not.default: (elementwise_arithmetic.bitwise_not,),
    aten.logsumexp.default: (log_sum_exp,),
    aten.logcumsumexp.default: (cumulative_log_sum_exp,),
}


ACTIVATIONS: Mapping[Any, tuple[Any, ...]] = {
    aten.sigmoid.default: (activation.activation_near_zero, "SIGMOID"),
    aten.tanh.default: (activation.tanh,),
    aten.relu.default: (activation.relu,),
    aten.relu6.default: (lambda net, x: elementwise.clamp(net, x, 0, 6),),
    aten.hardtanh.default: (elementwise.clamp,),
    aten.gelu.default: (activation.gelu,),
    aten.silu.default: (activation.silu,),
    aten.leaky_relu.default: (activation.leaky_relu,),
    aten._prelu_kernel.default: (activation.prelu,),
    aten.elu.default: (activation.elu,),
    aten.hardsigmoid.default: (activation.hard_sigmoid,),
    aten.hardswish.default: (activation.hard_swish,),
    aten.softplus.default: (activation.softplus,),
    aten.mish.default: (activation.mish,),
    aten.softshrink.default: (activation.soft_shrink,),
}


@converts(TABLE, ACTIVATIONS)
def unary_function(net: Net, block_and_arguments: tuple[Any, ...], *operands: Value) -> ITensor:
    """Convert an operator of one tensor by its function and arguments in the tables `TABLE` and `ACTIVATIONS`."""
    return call_block(net, block_and_arguments, operands)


@converts(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(net: Net, input: Value) -> tuple[ITensor | None, ...]:
    """log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer). Only a backward pass reads the buffer."""
    return cast_to_result(net, activation.log_sigmoid(net, input)), None


Softmax = Callable[[Net, ITensor, int], ITensor]

SOFTMAX = {
    aten._softmax.default: impl.softmax,
    aten.softmax.int: impl.softmax,
    aten._log_softmax.default: impl.log_softmax,
    aten.log_softmax.int: impl.log_softmax,
}


@converts(SOFTMAX)
def softmax(
    net: Net, block: Softmax, input: Value, dim: int, dtype: torch.dtype | None = None, half_to_float: bool = False
) -> ITensor:
    """softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor;
    _softmax(Tensor self, int dim, bool half_to_float) -> Tensor; also log_softmax (``block`` adds the layers)"""
    dtype = torch.float32 if half_to_float or dtype == torch.float64 else dtype
    return block(net, base.tensor(net, input, dtype), dim)
