"""Matrix products and linear layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.results import converts
from pipeline.impl import matmul as impl

aten = torch.ops.aten


@converts(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, aten.matmul.default)
def matmul(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """matmul(Tensor self, Tensor other) -> Tensor"""
    return impl.matmul(ctx, name, *bind(target, args, kwargs))


@converts(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def addmm(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return impl.plus_product(ctx, name, *bind(target, args, kwargs))


@converts(aten.linear.default)
def linear(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    return impl.linear(ctx, name, *bind(target, args, kwargs))
