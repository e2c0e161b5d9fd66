"""Matrix products."""

from __future__ import annotations

import torch

from pipeline.converters.context import ConversionContext
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import HALVES, arithmetic, binary
from pipeline.trt import trt


def matmul(
    ctx: ConversionContext, name: str, a: Value, b: Value, *, transpose_a: bool = False, transpose_b: bool = False
) -> ITensor:
    """``a @ b`` over the last two dims, the others broadcast; a 1-d operand is a vector. Accumulates in fp32, or, for
    integers, exactly."""
    result = _accumulated(ctx, name, a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return base.cast(ctx, name, result, base.result_type(a, b))


def _accumulated(
    ctx: ConversionContext, name: str, a: Value, b: Value, *, transpose_a: bool = False, transpose_b: bool = False
) -> ITensor:
    """The product; with ``use_fp32_acc`` that of halves is in float32."""
    op_a, op_b = _operation(base.rank(a), transpose_a), _operation(base.rank(b), transpose_b)
    batch = max(base.rank(a), base.rank(b), 2) - 2  # TensorRT wants as many batch dims on both sides
    x = base.tensor(ctx, name, a, rank=batch + min(base.rank(a), 2))
    y = base.tensor(ctx, name, b, rank=batch + min(base.rank(b), 2))
    if ctx.compilation_settings.use_fp32_acc and base.dtype_of(x) in HALVES:
        x, y = (base.cast(ctx, name, v, torch.float32) for v in (x, y))
    dtype = base.dtype_of(x)
    if not dtype.is_floating_point:
        x, y = (base.cast(ctx, name, v, arithmetic(dtype)) for v in (x, y))
        x, y = _matrix(ctx, name, x, op_a, -2), _matrix(ctx, name, y, op_b, -1)
        return base.cast(ctx, name, _integers(ctx, name, x, y, op_a, op_b), dtype)
    if base.dims(x) == base.dims(y) == (0,):  # RTX 1.4 does not build a product of two empty vectors
        row, column = base.unsqueeze(ctx, name, x, [0]), base.unsqueeze(ctx, name, y, [1])
        return base.squeeze(ctx, name, _product(ctx, name, row, column), [0, 1])
    return _product(ctx, name, x, y, op_a, op_b)


def _product(
    ctx: ConversionContext,
    name: str,
    x: ITensor,
    y: ITensor,
    op_a: trt.MatrixOperation = trt.MatrixOperation.NONE,
    op_b: trt.MatrixOperation = trt.MatrixOperation.NONE,
) -> ITensor:
    return ctx.add(name, "matrix_multiply", x, op_a, y, op_b).get_output(0)


def _operation(rank: int, transpose: bool) -> trt.MatrixOperation:
    if rank == 1:
        return trt.MatrixOperation.VECTOR
    return trt.MatrixOperation.TRANSPOSE if transpose else trt.MatrixOperation.NONE


def _matrix(ctx: ConversionContext, name: str, x: ITensor, operation: trt.MatrixOperation, dim: int) -> ITensor:
    """The operand as a matrix: a vector becomes a row (-2) or a column (-1)."""
    rank = base.rank(x)
    if operation == trt.MatrixOperation.VECTOR:
        return base.unsqueeze(ctx, name, x, [base.axis(dim, rank + 1)])
    if operation == trt.MatrixOperation.TRANSPOSE:
        return base.permute(ctx, name, x, [*range(rank - 2), -1, -2])
    return x


def _integers(
    ctx: ConversionContext,
    name: str,
    a: ITensor,
    b: ITensor,
    op_a: trt.MatrixOperation,
    op_b: trt.MatrixOperation,
) -> ITensor:
    """TensorRT multiplies matrices of floats only: here every product is made, and summed."""
    rank = base.rank(a)
    left, right = base.unsqueeze(ctx, name, a, [rank]), base.unsqueeze(ctx, name, b, [rank - 2])
    products = base.elementwise(ctx, name, "PROD", left, right)
    vector = trt.MatrixOperation.VECTOR
    total = ctx.add(name, "reduce", products, trt.ReduceOperation.SUM, 1 << (rank - 1), False).get_output(0)
    return base.squeeze(ctx, name, total, [rank - 2] * (op_a == vector) + [rank - 1] * (op_b == vector))


def linear(ctx: ConversionContext, name: str, x: Value, weight: Value, bias: Value | None) -> ITensor:
    """``x @ weight.T + bias``: the weight stays as it is, TensorRT reads it transposed."""
    result = _accumulated(ctx, name, x, weight, transpose_b=base.rank(weight) == 2)
    result = result if bias is None else binary(ctx, name, "SUM", result, bias)
    return base.cast(ctx, name, result, base.result_type(x, weight))


def plus_product(
    ctx: ConversionContext, name: str, x: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1
) -> ITensor:
    """``beta * x + alpha * (a @ b)``; ``x`` is not read where beta is 0, so that its NaN does not matter."""
    result, product = base.result_type(a, b), _accumulated(ctx, name, a, b)
    dtype = base.dtype_of(product)
    if alpha != 1:
        product = binary(ctx, name, "PROD", product, _coefficient(alpha, dtype), dtype)
    if beta == 0:
        return base.cast(ctx, name, product, result)
    scaled = x if beta == 1 else binary(ctx, name, "PROD", x, _coefficient(beta, dtype), dtype)
    return base.cast(ctx, name, binary(ctx, name, "SUM", product, scaled, dtype), result)


def _coefficient(value: float, dtype: torch.dtype) -> float:
    return value if dtype.is_floating_point else int(value)
