"""Compute TensorRT's elementwise layers, including casts, in PyTorch."""

import math
from collections.abc import Callable, Mapping

import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import reshape_along_axis, widen
from pipeline.trt import torch_dtype


def _divide_integers(a: torch.Tensor, b: torch.Tensor, rounding: str) -> torch.Tensor:
    """Divide integers with this rounding; a division by zero, undefined in TensorRT, returns 0."""
    zero = b == 0
    return torch.div(a, torch.where(zero, 1, b), rounding_mode=rounding).masked_fill(zero, 0)


def _power(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute a power; integer results with a negative exponent round toward zero."""
    if a.is_floating_point():
        return torch.pow(a, b)
    reciprocal = torch.where(a == 1, 1, torch.where(a == -1, 1 - 2 * (b % 2), 0))
    return torch.where(b < 0, reciprocal.to(a.dtype), torch.pow(a, b.clamp(min=0)))


# MAX and MIN keep the first operand unless the second compares greater or less: a NaN in the first stays, one in the
# second is ignored (measured on RTX 1.4; NVIDIA/TensorRT issue 4758).
ELEMENTWISE: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "MAX": lambda a, b: torch.where(b > a, b, a),
    "MIN": lambda a, b: torch.where(b < a, b, a),
    "SUB": torch.sub,
    "DIV": lambda a, b: a / b if a.is_floating_point() else _divide_integers(a, b, "trunc"),
    "POW": _power,
    "FLOOR_DIV": lambda a, b: torch.floor(a / b) if a.is_floating_point() else _divide_integers(a, b, "floor"),
    "AND": torch.logical_and,
    "OR": torch.logical_or,
    "XOR": torch.logical_xor,
    "EQUAL": torch.eq,
    "GREATER": torch.gt,
    "LESS": torch.lt,
}
SAME_IN_TORCH = (
    *("exp", "log", "sqrt", "abs", "neg", "ceil", "floor", "round", "erf", "isinf", "isnan"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
)
UNARY: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name.upper(): getattr(torch, name) for name in SAME_IN_TORCH},
    "RECIP": torch.reciprocal,
    "NOT": torch.logical_not,
    "SIGN": lambda x: torch.where(x != x, x, torch.sign(x)),
}


def _gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Compute GELU in float64, since PyTorch's own returns inf or NaN for inf depending on the tensor's length."""
    x = x.double()
    if approximate == "tanh":
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


ACTIVATION: Mapping[str, Callable[[torch.Tensor, float, float], torch.Tensor]] = {
    "RELU": lambda x, alpha, beta: torch.relu(x),
    "SIGMOID": lambda x, alpha, beta: torch.sigmoid(x),
    "TANH": lambda x, alpha, beta: torch.tanh(x),
    "LEAKY_RELU": lambda x, alpha, beta: torch.where(x >= 0, x, alpha * x),
    "ELU": lambda x, alpha, beta: torch.where(x >= 0, x, alpha * torch.expm1(x)),
    "SELU": lambda x, alpha, beta: beta * torch.where(x > 0, x, alpha * torch.expm1(x)),
    "SOFTSIGN": lambda x, alpha, beta: x / (1 + x.abs()),
    # alpha * log(1 + exp(beta * x)), without overflow
    "SOFTPLUS": lambda x, alpha, beta: alpha * torch.logaddexp(beta * x, torch.zeros_like(x)),
    "CLIP": lambda x, alpha, beta: x.clamp(alpha, beta),
    "HARD_SIGMOID": lambda x, alpha, beta: (alpha * x + beta).clamp(0, 1),
    "SCALED_TANH": lambda x, alpha, beta: alpha * torch.tanh(beta * x),
    "THRESHOLDED_RELU": lambda x, alpha, beta: torch.where(x > alpha, x, torch.zeros_like(x)),
    "GELU_ERF": lambda x, alpha, beta: _gelu(x, "none"),
    "GELU_TANH": lambda x, alpha, beta: _gelu(x, "tanh"),
}


def elementwise(layer: Layer, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result = ELEMENTWISE[layer.attribute("op")](widen(a), widen(b))
    return result if result.dtype == torch.bool else result.to(a.dtype)


def _to_float32(x: torch.Tensor) -> torch.Tensor:
    """Convert half precision and int8 to float32, because TensorRT computes these dtypes in float32."""
    return x.float() if x.dtype == torch.int8 else widen(x)


def unary(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    result = UNARY[layer.attribute("op")](_to_float32(x))
    return result if result.dtype == torch.bool else result.to(x.dtype)


def activation(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    result = ACTIVATION[layer.attribute("type")](_to_float32(x), layer.attribute("alpha"), layer.attribute("beta"))
    return result.to(x.dtype)


def select(layer: Layer, condition: torch.Tensor, then: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    return torch.where(condition, then, otherwise)


def parametric_relu(layer: Layer, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x >= 0, widen(x), widen(slope) * widen(x)).to(x.dtype)


def _broadcast_coefficient(layer: Layer, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Reshape a scale layer's weight to broadcast with ``x``: one value, one per channel, or one per element."""
    mode, axis = layer.attribute("mode"), layer.attribute("channel_axis")
    if mode == "UNIFORM":
        return widen(weight).reshape(())
    if mode == "CHANNEL":
        return reshape_along_axis(widen(weight), axis, x.dim())
    return widen(weight).reshape([1] * axis + list(x.shape[axis:]))


def scale(layer: Layer, x: torch.Tensor, **weights: torch.Tensor) -> torch.Tensor:
    """Compute (x * scale + shift) ** power; scale, shift and power are optional."""
    result = widen(x)
    for role, apply in (("scale", torch.mul), ("shift", torch.add), ("power", torch.pow)):
        if role in weights:
            result = apply(result, _broadcast_coefficient(layer, weights[role], x))
    return result.to(x.dtype)


def convert_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast as a GPU does: floats are truncated to integers, saturating at the bounds. NaN becomes 0, but in
    int64 the least value; int8 and uint8 are the low byte of the int32 (measured with TensorRT-RTX 1.4)."""
    if not x.is_floating_point() or dtype.is_floating_point or dtype == torch.bool:
        return x.to(dtype)
    if dtype.itemsize == 1:
        return convert_dtype(x, torch.int32).to(dtype)
    bounds = torch.iinfo(dtype)
    nan = float(bounds.min) if dtype == torch.int64 else 0.0
    exact = x.double().nan_to_num(nan=nan, posinf=float(bounds.max), neginf=float(bounds.min)).trunc()
    inside = exact.clamp(float(bounds.min), float(bounds.max))
    high, low = exact >= float(bounds.max), exact <= float(bounds.min)  # 2**63 - 1 is not a float64
    return inside.masked_fill(high | low, 0).to(dtype).masked_fill(high, bounds.max).masked_fill(low, bounds.min)


def cast(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return convert_dtype(x, torch_dtype(layer.attribute("to_type")))


def identity(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Return the input, cast if the output has another dtype."""
    return convert_dtype(x, torch_dtype(layer.outputs[0].dtype))
