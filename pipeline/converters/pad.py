"""Padding: with a constant, by reflection, by the outermost element, around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import bind
from pipeline.converters.results import converts
from pipeline.impl import base
from pipeline.impl.pad import pad as _pad
from pipeline.impl.shape import result_sizes
from pipeline.network.context import ConversionContext

aten = torch.ops.aten

MODES = {
    aten.reflection_pad1d.default: "reflect",
    aten.reflection_pad2d.default: "reflect",
    aten.reflection_pad3d.default: "reflect",
    aten.replication_pad1d.default: "replicate",
    aten.replication_pad2d.default: "replicate",
    aten.replication_pad3d.default: "replicate",
    aten._pad_circular.default: "circular",
}


@converts(*MODES)
def pad_nd(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor"""
    x, amounts = bind(target, args, kwargs)
    return _pad(ctx, name, base.tensor(ctx, name, x), amounts, result_sizes(ctx), MODES[target])


@converts(aten.constant_pad_nd.default)
def constant_pad_nd(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"""
    x, amounts, value = bind(target, args, kwargs)
    return _pad(ctx, name, base.tensor(ctx, name, x), amounts, result_sizes(ctx), "constant", value)


@converts(aten.pad.default)
def pad(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """pad(Tensor self, SymInt[] pad, str mode="constant", float? value=None) -> Tensor"""
    x, amounts, mode, value = bind(target, args, kwargs)
    value = 0 if value is None else value
    return _pad(ctx, name, base.tensor(ctx, name, x), amounts, result_sizes(ctx), mode, value)
