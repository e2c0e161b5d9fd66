"""Activation layers."""

from __future__ import annotations

from pipeline.converters.context import ConversionContext
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import arithmetic
from pipeline.impl.unary import floating
from pipeline.trt import trt


def activation(
    ctx: ConversionContext, name: str, kind: str, x: ITensor, alpha: float | None = None, beta: float | None = None
) -> ITensor:
    """One activation layer, by the name of its ``trt.ActivationType``."""
    layer = ctx.add(name, "activation", x, trt.ActivationType.__members__[kind])
    if alpha is not None:
        layer.alpha = alpha
    if beta is not None:
        layer.beta = beta
    return layer.get_output(0)


def smooth(ctx: ConversionContext, name: str, kind: str, x: Value) -> ITensor:
    """An activation of floats; integers become float32."""
    return activation(ctx, name, kind, floating(ctx, name, x))


def relu(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """What is above zero, else zero; of integers as well."""
    dtype = base.dtype_of(x)
    return base.cast(ctx, name, activation(ctx, name, "RELU", base.tensor(ctx, name, x, arithmetic(dtype))), dtype)


def gelu(ctx: ConversionContext, name: str, x: Value, approximate: str) -> ITensor:
    """``x`` times the normal distribution's integral up to it, by erf or its tanh approximation."""
    return activation(ctx, name, "GELU_TANH" if approximate == "tanh" else "GELU_ERF", base.tensor(ctx, name, x))


def silu(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``x * sigmoid(x)``."""
    x = base.tensor(ctx, name, x)
    return base.elementwise(ctx, name, "PROD", x, activation(ctx, name, "SIGMOID", x))
