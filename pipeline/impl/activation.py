"""Add activation functions: TensorRT's layer where it is correct for NaN and near zero, else float32 arithmetic."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.barriers import is_marked
from pipeline.impl.base import ITensor, Net, Value, block
from pipeline.impl.elementwise import add, arithmetic_dtype, binary, clamp, layer, where
from pipeline.impl.unary import expm1, log1p, to_float32, to_floating
from pipeline.trt import trt


@block
def activation(net: Net, kind: str, x: ITensor, alpha: float | None = None, beta: float | None = None) -> ITensor:
    """Add an activation layer; ``kind`` is the name of its ``trt.ActivationType``."""
    layer = net.add("activation", x, trt.ActivationType.__members__[kind])
    if alpha is not None:
        layer.alpha = alpha
    if beta is not None:
        layer.beta = beta
    return layer.get_output(0)


@block
def activation_near_zero(net: Net, kind: str, x: Value) -> ITensor:
    """Add an activation layer; bfloat16 is computed in float32, since RTX 1.4 returns 0 for results like 6.6e-36."""
    x = to_floating(net, x)
    dtype = base.dtype_of(x)
    compute = torch.float32 if dtype == torch.bfloat16 else dtype
    return base.cast(net, activation(net, kind, base.cast(net, x, compute)), dtype)


@block
def relu(net: Net, x: Value) -> ITensor:
    """Return ``max(x, 0)`` of floats or integers."""
    dtype = base.dtype_of(x)
    given = base.tensor(net, x, arithmetic_dtype(dtype))
    return base.cast(net, activation(net, "RELU", _add_barrier_after_matmul_if_marked(net, given)), dtype)


def _add_barrier_after_matmul_if_marked(net: Net, x: ITensor) -> ITensor:
    """Return ``x``; if a `Mark` says that fusing its matmul with this activation loses the bias, separate them."""
    return separate_from_matmul(net, x) if is_marked(net, "biases-of-matmuls") else x


@block
def separate_from_matmul(net: Net, x: ITensor) -> ITensor:
    """Add a barrier (a layer across which TensorRT does not fuse) between a matmul with bias and a ReLU or GELU, since
    RTX 1.6.1 fuses both to a kernel that an H100 lacks."""
    return base.barrier(net, x, "biases-of-matmuls")


@block
def erf(net: Net, x: Value) -> ITensor:
    """Return the error function of ``x``, by a layer that TensorRT may recognize as a part of GELU."""
    return base.unary(net, "ERF", _add_barrier_after_matmul_if_marked(net, to_floating(net, x)))


@block
def tanh(net: Net, x: Value) -> ITensor:
    """Return the hyperbolic tangent of ``x``, by a layer that TensorRT may recognize as a part of GELU."""
    return activation(net, "TANH", _add_barrier_after_matmul_if_marked(net, to_floating(net, x)))


@block
def gelu(net: Net, x: Value, approximate: str) -> ITensor:
    """Return GELU of ``x`` by erf, or by tanh if ``approximate`` is "tanh", in float32; inside a matmul's kernel
    float32 is also faster than half precision (docs/notes/2026-11-29-real-sizes.md)."""
    x = to_floating(net, x)
    dtype = base.dtype_of(x)
    given = _add_barrier_after_matmul_if_marked(net, x) if dtype == torch.float32 else x
    kind = "GELU_TANH" if approximate == "tanh" else "GELU_ERF"
    return base.cast(net, activation(net, kind, base.cast(net, given, torch.float32)), dtype)


@block
def silu(net: Net, x: Value) -> ITensor:
    """Return ``x * sigmoid(x)``, in float32: in half precision, sigmoid has few significant bits below -10."""
    x = base.cast(net, base.tensor(net, x), torch.float32)
    return base.elementwise(net, "PROD", x, activation(net, "SIGMOID", x))


@block
def leaky_relu(net: Net, x: Value, negative_slope: float) -> ITensor:
    """Return ``x`` where it is above zero, and ``negative_slope * x`` elsewhere."""
    if negative_slope <= 0:  # the layer's -0 has another sign
        return prelu(net, x, negative_slope)
    return activation(net, "LEAKY_RELU", base.tensor(net, x), negative_slope)


@block
def prelu(net: Net, x: Value, weight: Value) -> ITensor:
    """Return ``x`` where it is above zero, and ``weight * x`` elsewhere; the weight broadcasts."""
    x = base.tensor(net, x)
    above = layer(net, "GREATER", x, 0.0, base.dtype_of(x))
    return where(net, above, x, binary(net, "PROD", x, weight))


@block
def elu(net: Net, x: Value, alpha: float, scale: float, input_scale: float) -> ITensor:
    """Return ``scale * x``, but ``scale * alpha * (exp(input_scale * x) - 1)`` where ``x`` is below zero."""
    x = to_float32(net, x)
    inner = _multiply(net, x, input_scale)
    below = _multiply(net, expm1(net, inner), float(alpha) * float(scale))
    negative = layer(net, "LESS", x, 0.0, torch.float32)
    return where(net, negative, below, _multiply(net, x, scale))


def _multiply(net: Net, x: ITensor, factor: float) -> ITensor:
    return x if factor == 1 else layer(net, "PROD", x, factor, torch.float32)


@block
def hard_sigmoid(net: Net, x: Value) -> ITensor:
    """Return ``clamp(x + 3, 0, 6) / 6``; TensorRT's layer multiplies before it adds, which loses digits near -3."""
    shifted = layer(net, "SUM", to_float32(net, x), 3.0, torch.float32)
    return layer(net, "DIV", clamp(net, shifted, 0.0, 6.0), 6.0, torch.float32)


@block
def hard_swish(net: Net, x: Value) -> ITensor:
    """Return ``x * hard_sigmoid(x)``."""
    x = to_float32(net, x)
    shifted = layer(net, "SUM", x, 3.0, torch.float32)
    scaled = base.elementwise(net, "PROD", x, clamp(net, shifted, 0.0, 6.0))
    return layer(net, "DIV", scaled, 6.0, torch.float32)


@block
def softplus(net: Net, x: Value, beta: float = 1.0, threshold: float = 20.0) -> ITensor:
    """Return ``log(1 + exp(beta * x)) / beta``, but ``x`` where ``beta * x`` is above the threshold."""
    x = to_float32(net, x)
    scaled = _multiply(net, x, beta)
    grown = log1p(net, base.unary(net, "EXP", scaled))
    grown = grown if beta == 1 else layer(net, "DIV", grown, beta, torch.float32)
    return where(net, layer(net, "GREATER", scaled, threshold, torch.float32), x, grown)


@block
def mish(net: Net, x: Value) -> ITensor:
    """Return ``x * tanh(softplus(x))``."""
    x = to_float32(net, x)
    bend = activation(net, "TANH", softplus(net, x, threshold=float("inf")))
    return base.elementwise(net, "PROD", x, bend)


@block
def log_sigmoid(net: Net, x: Value) -> ITensor:
    """Return ``log(sigmoid(x))``, computed as ``min(x, 0) - log(1 + exp(-|x|))``, which cannot overflow."""
    x = to_float32(net, x)
    decay = base.unary(net, "EXP", base.unary(net, "NEG", base.unary(net, "ABS", x)))
    return base.elementwise(net, "SUB", clamp(net, x, None, 0.0), log1p(net, decay))


@block
def soft_shrink(net: Net, x: Value, bound: float) -> ITensor:
    """Return ``x`` moved toward zero by ``bound``; zero where ``|x| <= bound``."""
    x = base.tensor(net, x)
    dtype = base.dtype_of(x)
    result = where(net, base.unary(net, "ISNAN", x), x, 0.0, dtype)
    for side, operation, move in (("GREATER", "SUB", bound), ("LESS", "SUM", -bound)):
        beyond = layer(net, side, x, move, dtype)
        result = where(net, beyond, add(net, operation, x, bound), result, dtype)
    return result
