"""Building blocks for matmuls."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call
from pipeline.trt import trt

NONE = trt.MatrixOperation.NONE


def _apply_operation(matrix: Argument, operation: Argument) -> Expression:
    """Transpose a matrix if ``operation`` is ``trt.MatrixOperation.TRANSPOSE``; return a vector unchanged."""
    return call(aten.transpose.int, matrix, -2, -1) if operation.name == "TRANSPOSE" else matrix


@block
def matrix_multiply(
    input: Argument, other: Argument, input_matrix_op: Argument = NONE, other_matrix_op: Argument = NONE
) -> Expression:
    """Multiply matrices (aten.matmul.default), each after its ``trt.MatrixOperation``: unchanged or transposed."""
    return call(aten.matmul.default, _apply_operation(input, input_matrix_op), _apply_operation(other, other_matrix_op))
