"""Building blocks for elementwise functions of one tensor."""

from __future__ import annotations

from typing import Final

import torch

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call, op_block, require
from pipeline.compat.torch_tensorrt.values import torch_dtype

_NAMES: Final = """exp log sqrt abs neg sin cos tan sinh cosh asin acos atan asinh acosh atanh ceil floor erf sign round
    isinf isnan"""
TARGETS: Final = {
    **{name.upper(): getattr(aten, name).default for name in _NAMES.split()},
    "RECIP": aten.reciprocal.default,
    "NOT": aten.logical_not.default,
}
"""The ATen equivalent of each TensorRT unary operation, by its name."""

exp, log, sqrt = (op_block(TARGETS[name], "input_val") for name in ("EXP", "LOG", "SQRT"))
recip, abs, neg = (op_block(TARGETS[name], "input_val") for name in ("RECIP", "ABS", "NEG"))
sin, cos, tan = (op_block(TARGETS[name], "input_val") for name in ("SIN", "COS", "TAN"))
sinh, cosh = (op_block(TARGETS[name], "input_val") for name in ("SINH", "COSH"))
asin, acos, atan = (op_block(TARGETS[name], "input_val") for name in ("ASIN", "ACOS", "ATAN"))
asinh, acosh, atanh = (op_block(TARGETS[name], "input_val") for name in ("ASINH", "ACOSH", "ATANH"))
ceil, floor, round = (op_block(TARGETS[name], "input_val") for name in ("CEIL", "FLOOR", "ROUND"))
erf, sign, isinf = (op_block(TARGETS[name], "input_val") for name in ("ERF", "SIGN", "ISINF"))
logical_not, isnan = op_block(TARGETS["NOT"], "input_val"), op_block(TARGETS["ISNAN"], "input")
expm1, log10, log2, log1p, trunc, bitwise_not, nonzero = (
    op_block(op.default, "input_val")
    for op in (aten.expm1, aten.log10, aten.log2, aten.log1p, aten.trunc, aten.bitwise_not, aten.nonzero)
)
sym_not = op_block(aten.logical_not.default, "input_val")
convert_unary = block(
    lambda operation_type, input_val: call(TARGETS[operation_type.name], input_val),
    "The layer of a ``trt.UnaryOperation``, with eager's dtypes.",
)
scalar_tensor = block(
    lambda scalar, dtype=None: call(aten.scalar_tensor.default, scalar, dtype=torch_dtype(dtype)),
    "aten.scalar_tensor.default",
)


@block
def native_dropout(input_val: Argument, p: float, train: bool | None = False) -> Expression:
    """Return [tensor, mask] for inference: the tensor is unchanged, and the mask is True at all elements."""
    require(
        not train, "impl.unary.native_dropout", "random numbers are never frozen into an engine", "pass train=False"
    )
    mask = call(aten.full_like.default, input_val, True, dtype=torch.bool)
    return [call(aten.clone.default, input_val), mask]
