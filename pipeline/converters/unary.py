"""Functions of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import elementwise, unary

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]
Unary = Callable[[ConversionContext, str, str, Any], Any]

TABLE: Mapping[Any, tuple[Unary, str]] = {
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
    aten.erf.default: (unary.real, "ERF"),
    aten.abs.default: (unary.signed, "ABS"),
    aten.neg.default: (unary.signed, "NEG"),
    aten.ceil.default: (unary.rounded, "CEIL"),
    aten.floor.default: (unary.rounded, "FLOOR"),
    aten.round.default: (unary.rounded, "ROUND"),
}


def _from_table(target: Any, implementation: Unary, operation: str) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        return implementation(ctx, name, operation, *bind(target, args, kwargs))

    convert.__doc__ = str(target._schema)
    return convert


CONVERTERS = [_from_table(target, *row) for target, row in TABLE.items()]


@dynamo_tensorrt_converter(aten.logical_not.default, supports_dynamic_shapes=True)
def logical_not(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """logical_not(Tensor self) -> Tensor"""
    return elementwise.logical_not(ctx, name, *bind(target, args, kwargs))


@dynamo_tensorrt_converter(aten.rsqrt.default, supports_dynamic_shapes=True)
def rsqrt(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """rsqrt(Tensor self) -> Tensor"""
    return unary.rsqrt(ctx, name, *bind(target, args, kwargs))
