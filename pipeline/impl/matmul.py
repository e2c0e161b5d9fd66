"""Matrix products."""

from __future__ import annotations

from pipeline.converters.context import ConversionContext
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import binary
from pipeline.trt import trt


def matmul(
    ctx: ConversionContext, name: str, a: Value, b: Value, *, transpose_a: bool = False, transpose_b: bool = False
) -> ITensor:
    """``a @ b`` over the last two dims, the others broadcast; a 1-d operand is a vector. Accumulates in fp32."""
    op_a, op_b = _operation(base.rank(a), transpose_a), _operation(base.rank(b), transpose_b)
    batch = max(base.rank(a), base.rank(b), 2) - 2  # TensorRT wants as many batch dims on both sides
    x = base.tensor(ctx, name, a, rank=batch + min(base.rank(a), 2))
    y = base.tensor(ctx, name, b, rank=batch + min(base.rank(b), 2))
    return ctx.add(name, "matrix_multiply", x, op_a, y, op_b).get_output(0)


def _operation(rank: int, transpose: bool) -> trt.MatrixOperation:
    if rank == 1:
        return trt.MatrixOperation.VECTOR
    return trt.MatrixOperation.TRANSPOSE if transpose else trt.MatrixOperation.NONE


def linear(ctx: ConversionContext, name: str, x: Value, weight: Value, bias: Value | None) -> ITensor:
    """``x @ weight.T + bias``: the weight stays as it is, TensorRT reads it transposed."""
    result = matmul(ctx, name, x, weight, transpose_b=base.rank(weight) == 2)
    return result if bias is None else binary(ctx, name, "SUM", result, bias)
