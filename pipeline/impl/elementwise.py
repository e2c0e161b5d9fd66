"""Add elementwise layers of two or more tensors, with eager's type promotion and broadcasting.
TensorRT has only logic layers for bools; other operations on bools are computed in int32."""

from __future__ import annotations

import math
from typing import Any

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Value, block
from pipeline.impl.empty import separate_from_empty_dims
from pipeline.trt import trt

HALVES = (torch.float16, torch.bfloat16)
LOGIC = {"SUM": "OR", "PROD": "AND", "MAX": "OR", "MIN": "AND"}


@block
def promote(net: Net, *values: Value, dtype: torch.dtype | None = None) -> tuple[ITensor, ...]:
    """Convert values to tensors of equal rank and of the promoted dtype (or ``dtype``). If that is half precision,
    integers are rounded as in eager; large integers become infinite."""
    common = base.result_type(*values) if dtype is None or any(map(_is_integral, values)) else dtype
    dtype, rank = dtype or common, max(map(base.rank, values))
    if common in HALVES and dtype != common:
        values = tuple(base.tensor(net, v, common) if _is_integral(v) else v for v in values)
    return separate_from_empty_dims(net, values, [base.tensor(net, v, dtype, rank=rank) for v in values])


def _is_integral(value: Value) -> bool:
    return isinstance(value, trt.ITensor | torch.Tensor) and base.dtype_of(value) in (torch.int32, torch.int64)


@block
def layer(net: Net, operation: str, a: Value, b: Value, dtype: torch.dtype) -> ITensor:
    """Add an elementwise layer on two values, broadcast and cast to a dtype."""
    return base.elementwise(net, operation, *promote(net, a, b, dtype=dtype))


@block
def binary(net: Net, operation: str, a: Value, b: Value, dtype: torch.dtype | None = None) -> ITensor:
    """Return ``a operation b``, by the name of a ``trt.ElementWiseOperation``, in ``dtype`` or the promoted dtype."""
    dtype = dtype or base.result_type(a, b)
    if dtype == torch.bool and operation in LOGIC:
        return logical(net, LOGIC[operation], a, b)
    return base.cast(net, layer(net, operation, a, b, arithmetic_dtype(dtype)), dtype)


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which TensorRT can compute arithmetic: int32 for bools, else the dtype itself."""
    return torch.int32 if dtype == torch.bool else dtype


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which eager computes internally: float32 for half precision, else the dtype itself."""
    return torch.float32 if dtype in HALVES else dtype


def is_number(value: Value) -> bool:
    return isinstance(value, (bool, int, float))


def is_exact(value: Value, dtype: torch.dtype) -> bool:
    """Return whether a dtype represents a Python number exactly; True for tensors."""
    if not is_number(value) or dtype not in HALVES:
        return True
    return math.isnan(value) or torch.tensor(value, dtype=dtype).item() == value


@block
def add(net: Net, operation: str, a: Value, b: Value, alpha: Any = 1) -> ITensor:
    """Return ``a + alpha * b`` or ``a - alpha * b``, in float32 if half precision would round more often than eager."""
    dtype = base.result_type(a, b)
    if is_number(b):
        b, alpha = b * alpha, 1
    if operation == "SUB" and is_number(alpha) and alpha != 1:  # as eager, for the sign of zeros
        operation, alpha = "SUM", -alpha
    exact = alpha == 1 and is_exact(a, dtype) and is_exact(b, dtype)
    compute = dtype if exact else wide_dtype(dtype)
    b = b if alpha == 1 else binary(net, "PROD", b, alpha, compute)
    return base.cast(net, binary(net, operation, a, b, compute), dtype)


@block
def compare(net: Net, operation: str, a: Value, b: Value) -> ITensor:
    """Return whether ``a`` is ``EQUAL`` to, ``LESS`` or ``GREATER`` than ``b``."""
    dtype = base.result_type(a, b)
    return layer(net, operation, a, b, dtype if operation == "EQUAL" else arithmetic_dtype(dtype))


@block
def compare_or_equal(net: Net, operation: str, a: Value, b: Value) -> ITensor:
    """Return whether ``a`` is ``LESS`` or ``GREATER`` than ``b``, or equal to it; False if either is NaN."""
    if not base.result_type(a, b).is_floating_point:
        opposite = {"LESS": "GREATER", "GREATER": "LESS"}[operation]
        return logical_not(net, compare(net, opposite, a, b))
    x, y = promote(net, a, b)
    either = base.elementwise(net, operation, x, y), base.elementwise(net, "EQUAL", x, y)
    return base.elementwise(net, "OR", *either)


@block
def not_equal(net: Net, a: Value, b: Value) -> ITensor:
    """Return whether ``a`` and ``b`` differ; NaN differs from everything."""
    return logical_not(net, compare(net, "EQUAL", a, b))


@block
def logical_not(net: Net, x: Value) -> ITensor:
    """Return a mask of the elements that are zero or False."""
    return base.is_zero(net, base.tensor(net, x))


@block
def logical(net: Net, operation: str, a: Value, b: Value) -> ITensor:
    """Return logical ``AND``, ``OR`` or ``XOR``; nonzero values are True. With a constant operand it is computed as
    int32 arithmetic, since RTX 1.4 simplifies such a logic layer incorrectly (``x AND False`` to ``x``)."""
    x, y = (b, a) if is_number(a) else (a, b)
    if is_number(y) and bool(y) == (operation == "AND"):
        return base.tensor(net, x, torch.bool)
    if is_number(y) and operation == "XOR":
        return logical_not(net, x)
    if all(isinstance(v, trt.ITensor) for v in (x, y)):
        return layer(net, operation, x, y, torch.bool)
    rank = max(map(base.rank, (x, y)))
    bits = [_as_zero_or_one(net, v, rank) for v in (x, y)]
    if operation == "XOR":
        return base.unary(net, "NOT", base.elementwise(net, "EQUAL", *bits))
    counted = base.elementwise(net, {"AND": "PROD", "OR": "SUM"}[operation], *bits)
    return layer(net, "GREATER", counted, 0, torch.int32)


def _as_zero_or_one(net: Net, value: Value, rank: int) -> ITensor:
    """Return 1 for each nonzero element and 0 for each zero, as int32."""
    if is_number(value):
        return base.constant(net, int(bool(value)), torch.int32, rank=rank)
    return base.cast(net, base.tensor(net, value, torch.bool, rank=rank), torch.int32)


@block
def where(net: Net, condition: Value, a: Value, b: Value, dtype: torch.dtype | None = None) -> ITensor:
    """Return ``a`` where the condition is true, else ``b``; broadcast, in ``dtype`` or the promoted dtype."""
    dtype, rank = dtype or base.result_type(a, b), max(map(base.rank, (condition, a, b)))
    compute = dtype if dtype == torch.bool else arithmetic_dtype(dtype)
    c = base.tensor(net, condition, torch.bool, rank=rank)
    if a is b and isinstance(b, torch.Tensor):  # TensorRT does not build a select between a constant and itself
        b = b.clone()
    x, y = (base.tensor(net, v, compute, rank=rank) for v in (a, b))
    c, x, y = separate_from_empty_dims(net, (condition, a, b), (c, x, y))
    return base.cast(net, net.add("select", c, x, y).get_output(0), dtype)


@block
def extremum(net: Net, operation: str, a: Value, b: Value) -> ITensor:
    """Return ``MAX`` or ``MIN``, NaN if either value is NaN (TensorRT's layer may ignore it: NVIDIA issue 4758)."""
    dtype = base.result_type(a, b)
    if not dtype.is_floating_point:
        return binary(net, operation, a, b)
    if is_number(a):
        a, b = b, a
    x, y = promote(net, a, b, dtype=dtype)
    if is_number(b) and not math.isnan(b):
        return limit(net, x, y, "LESS" if operation == "MAX" else "GREATER")
    result = base.elementwise(net, operation, x, y)
    for value in () if a is b else (x, y):  # the layer keeps the first operand's NaN
        result = where(net, base.unary(net, "ISNAN", value), value, result, dtype)
    return result


@block
def extremum_ignoring_nan(net: Net, operation: str, a: Value, b: Value) -> ITensor:
    """Return ``MAX`` or ``MIN`` of two values; if one is NaN, return the other."""
    dtype = base.result_type(a, b)
    if not dtype.is_floating_point:
        return binary(net, operation, a, b)
    x, y = promote(net, a, b, dtype=dtype)
    result = base.elementwise(net, operation, x, y)
    for value, other in ((x, y), (y, x)):
        result = where(net, base.unary(net, "ISNAN", value), other, result, dtype)
    return result


@block
def limit(net: Net, x: ITensor, bound: ITensor, comparison: str) -> ITensor:
    """Replace elements that are ``LESS`` or ``GREATER`` than a bound by this bound; NaN stays NaN."""
    return where(net, base.elementwise(net, comparison, x, bound), bound, x, base.dtype_of(x))


@block
def clamp(net: Net, x: Value, low: Value | None, high: Value | None) -> ITensor:
    """Clamp to bounds; the upper takes precedence. NaN stays NaN, unlike in TensorRT's CLIP (NVIDIA issue 4773)."""
    given = [bound for bound in (low, high) if bound is not None]
    dtype = base.result_type(x, *given)
    x = base.tensor(net, x, dtype)  # the common dtype of all three
    for bound, operation in ((low, "MAX"), (high, "MIN")):
        if bound is not None:
            bound = bound if is_number(bound) else base.tensor(net, bound, dtype)
            x = extremum(net, operation, x, bound)
    return x
