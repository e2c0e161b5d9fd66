"""Convert functions of one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pipeline.converters.binding import converts
from pipeline.converters.result_types import by_row
from pipeline.impl import activation, elementwise, elementwise_bits, elementwise_power, unary
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net

aten = torch.ops.aten

TABLE: Mapping[Any, tuple[Any, ...]] = {
    aten.exp.default: (unary.real, "EXP"),
    aten.log.default: (unary.real, "LOG"),
    aten.sqrt.default: (unary.real, "SQRT"),
    aten.reciprocal.default: (unary.real, "RECIP"),
    aten.sin.default: (unary.real, "SIN"),
    aten.cos.default: (unary.real, "COS"),
    aten.tan.default: (unary.real, "TAN"),
    aten.sinh.default: (unary.real, "SINH"),
    aten.cosh.default: (unary.real, "COSH"),
    aten.asin.default: (unary.real, "ASIN"),
    aten.acos.default: (unary.real, "ACOS"),
    aten.atan.default: (unary.real, "ATAN"),
    aten.asinh.default: (unary.real, "ASINH"),
    aten.acosh.default: (unary.real, "ACOSH"),
    aten.atanh.default: (unary.real, "ATANH"),
    aten.erf.default: (activation.erf,),
    aten.abs.default: (unary.signed, "ABS"),
    aten.neg.default: (unary.signed, "NEG"),
    aten.sign.default: (unary.sign,),
    aten.ceil.default: (unary.rounded, "CEIL"),
    aten.floor.default: (unary.rounded, "FLOOR"),
    aten.round.default: (unary.rounded, "ROUND"),
    aten.round.decimals: (unary.round_to,),
    aten.trunc.default: (unary.truncated,),
    aten.isnan.default: (unary.kind_of_number, "ISNAN"),
    aten.isinf.default: (unary.kind_of_number, "ISINF"),
    aten.rsqrt.default: (unary.rsqrt,),
    aten.log2.default: (unary.logarithm, 2.0),
    aten.log10.default: (unary.logarithm, 10.0),
    aten.log1p.default: (unary.log1p,),
    aten.expm1.default: (unary.expm1,),
    aten.exp2.default: (elementwise_power.power, 2.0),
    aten.logical_not.default: (elementwise.logical_not,),
    aten.bitwise_not.default: (elementwise_bits.bitwise_not,),
}


@converts(TABLE)
def of_one(net: Net, row: tuple[Any, ...], *operands: Value) -> ITensor:
    """Call a function of one tensor with the operator's arguments."""
    return by_row(net, row, operands)
