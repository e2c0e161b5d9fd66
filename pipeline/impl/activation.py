"""Activation functions: one layer where TensorRT's is right for NaN and near zero, else in float32 and rounded once."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import add, arithmetic, binary, clamp, is_nan, layer, where
from pipeline.impl.unary import absolute, expm1, floating, log1p, widened
from pipeline.network.context import ConversionContext
from pipeline.trt import trt


def activation(
    ctx: ConversionContext, name: str, kind: str, x: ITensor, alpha: float | None = None, beta: float | None = None
) -> ITensor:
    """One activation layer, by the name of its ``trt.ActivationType``."""
    made = ctx.add(name, "activation", x, trt.ActivationType.__members__[kind])
    if alpha is not None:
        made.alpha = alpha
    if beta is not None:
        made.beta = beta
    return made.get_output(0)


def smooth(ctx: ConversionContext, name: str, kind: str, x: Value) -> ITensor:
    """An activation of floats; integers become float32."""
    return activation(ctx, name, kind, floating(ctx, name, x))


def tailed(ctx: ConversionContext, name: str, kind: str, x: Value) -> ITensor:
    """An activation whose tail is small: bfloat16 is computed in float32 and rounded once, since RTX 1.4's own layers
    lose the tail (gelu gives -0.01465 for -0.01550, sigmoid 0 for 6.6e-36)."""
    x = floating(ctx, name, x)
    dtype = base.dtype_of(x)
    return base.cast(ctx, name, activation(ctx, name, kind, base.cast(ctx, name, x, _tail_dtype(dtype))), dtype)


def _tail_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


def relu(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """What is above zero, else zero; of integers as well."""
    dtype = base.dtype_of(x)
    return base.cast(ctx, name, activation(ctx, name, "RELU", base.tensor(ctx, name, x, arithmetic(dtype))), dtype)


def gelu(ctx: ConversionContext, name: str, x: Value, approximate: str) -> ITensor:
    """``x`` times the normal distribution's integral up to it, by erf or its tanh approximation."""
    return tailed(ctx, name, "GELU_TANH" if approximate == "tanh" else "GELU_ERF", x)


def silu(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``x * sigmoid(x)``, in float32: for x below -10 the sigmoid of a half has few bits left."""
    x = base.cast(ctx, name, base.tensor(ctx, name, x), torch.float32)
    return base.elementwise(ctx, name, "PROD", x, activation(ctx, name, "SIGMOID", x))


def leaky_relu(ctx: ConversionContext, name: str, x: Value, negative_slope: float) -> ITensor:
    """``x``, times a slope below zero."""
    if negative_slope <= 0:  # the layer gives -0 its own sign
        return prelu(ctx, name, x, negative_slope)
    return activation(ctx, name, "LEAKY_RELU", base.tensor(ctx, name, x), negative_slope)


def prelu(ctx: ConversionContext, name: str, x: Value, weight: Value) -> ITensor:
    """``x``, times a slope of its channel below zero; the slopes broadcast."""
    x = base.tensor(ctx, name, x)
    above = layer(ctx, name, "GREATER", x, 0.0, base.dtype_of(x))
    return where(ctx, name, above, x, binary(ctx, name, "PROD", x, weight))


def elu(ctx: ConversionContext, name: str, x: Value, alpha: float, scale: float, input_scale: float) -> ITensor:
    """``scale * x``, and ``scale * alpha * (exp(input_scale * x) - 1)`` below zero."""
    x = widened(ctx, name, x)
    inner = _times(ctx, name, x, input_scale)
    below = _times(ctx, name, expm1(ctx, name, inner), float(alpha) * float(scale))
    negative = layer(ctx, name, "LESS", x, 0.0, torch.float32)
    return where(ctx, name, negative, below, _times(ctx, name, x, scale))


def _times(ctx: ConversionContext, name: str, x: ITensor, factor: float) -> ITensor:
    return x if factor == 1 else layer(ctx, name, "PROD", x, factor, torch.float32)


def hard_sigmoid(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``x + 3`` between 0 and 6, over 6: TensorRT's layer multiplies first, which loses digits near -3."""
    shifted = layer(ctx, name, "SUM", widened(ctx, name, x), 3.0, torch.float32)
    return layer(ctx, name, "DIV", clamp(ctx, name, shifted, 0.0, 6.0), 6.0, torch.float32)


def hard_swish(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``x * hard_sigmoid(x)``."""
    x = widened(ctx, name, x)
    shifted = layer(ctx, name, "SUM", x, 3.0, torch.float32)
    product = base.elementwise(ctx, name, "PROD", x, clamp(ctx, name, shifted, 0.0, 6.0))
    return layer(ctx, name, "DIV", product, 6.0, torch.float32)


def softplus(ctx: ConversionContext, name: str, x: Value, beta: float = 1.0, threshold: float = 20.0) -> ITensor:
    """``log(1 + exp(beta * x)) / beta``, and ``x`` where ``beta * x`` is above the threshold."""
    x = widened(ctx, name, x)
    scaled = _times(ctx, name, x, beta)
    grown = log1p(ctx, name, base.unary(ctx, name, "EXP", scaled))
    grown = grown if beta == 1 else layer(ctx, name, "DIV", grown, beta, torch.float32)
    return where(ctx, name, layer(ctx, name, "GREATER", scaled, threshold, torch.float32), x, grown)


def mish(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``x * tanh(softplus(x))``."""
    x = widened(ctx, name, x)
    bend = activation(ctx, name, "TANH", softplus(ctx, name, x, threshold=float("inf")))
    return base.elementwise(ctx, name, "PROD", x, bend)


def log_sigmoid(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``log(1 / (1 + exp(-x)))``, as ``min(x, 0) - log(1 + exp(-|x|))``, which overflows on neither side."""
    x = widened(ctx, name, x)
    decay = base.unary(ctx, name, "EXP", base.unary(ctx, name, "NEG", absolute(ctx, name, x)))
    return base.elementwise(ctx, name, "SUB", clamp(ctx, name, x, None, 0.0), log1p(ctx, name, decay))


def soft_shrink(ctx: ConversionContext, name: str, x: Value, bound: float) -> ITensor:
    """``x`` moved toward zero by a bound, and zero inside it."""
    x = base.tensor(ctx, name, x)
    dtype = base.dtype_of(x)
    result = where(ctx, name, is_nan(ctx, name, x), x, 0.0, dtype)
    for side, operation, move in (("GREATER", "SUB", bound), ("LESS", "SUM", -bound)):
        beyond = layer(ctx, name, side, x, move, dtype)
        result = where(ctx, name, beyond, add(ctx, name, operation, x, bound), result, dtype)
    return result
