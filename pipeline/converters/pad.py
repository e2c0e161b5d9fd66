"""Convert padding: constant, reflecting, replicating, circular."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.aten.types import aten
from pipeline.converters.binding import converts
from pipeline.impl import base
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.shape import result_sizes
from pipeline.impl.slice import pad as _pad
from pipeline.network.net import Net

MODES = {
    aten.reflection_pad1d.default: "reflect",
    aten.reflection_pad2d.default: "reflect",
    aten.reflection_pad3d.default: "reflect",
    aten.replication_pad1d.default: "replicate",
    aten.replication_pad2d.default: "replicate",
    aten.replication_pad3d.default: "replicate",
}


@converts(MODES)
def pad_nd(net: Net, mode: str, input: Value, padding: Sequence[int]) -> ITensor:
    """reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor"""
    return _pad(net, base.tensor(net, input), padding, result_sizes(net), mode)


@converts(aten._pad_circular.default)
def pad_circular(net: Net, input: Value, pad: Sequence[Size]) -> ITensor:
    """_pad_circular(Tensor self, SymInt[] pad) -> Tensor"""
    return _pad(net, base.tensor(net, input), pad, result_sizes(net), "circular")


@converts(aten.constant_pad_nd.default)
def constant_pad_nd(net: Net, input: Value, pad: Sequence[int], value: float) -> ITensor:
    """constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"""
    return _pad(net, base.tensor(net, input), pad, result_sizes(net), "constant", value)


@converts(aten.pad.default)
def pad(net: Net, input: Value, pad: Sequence[int], mode: str, value: float | None) -> ITensor:
    """pad(Tensor self, SymInt[] pad, str mode="constant", float? value=None) -> Tensor"""
    value = 0 if value is None else value
    return _pad(net, base.tensor(net, input), pad, result_sizes(net), mode, value)
