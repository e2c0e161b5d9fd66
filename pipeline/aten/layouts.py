"""Operators that depend on how their input lies in memory, and what computes the same for any layout.

A program's values lie as they come: those of engines without gaps, whatever the example's did. So programs have
``as_strided`` of tensors that lie without gaps only (`pipeline.frontend.strided`), and whatever runs a node of a
program runs what this table says in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from pipeline.aten.types import Target

aten = torch.ops.aten


def as_strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """``x.as_strided(size, stride, storage_offset)`` of ``x`` laid out without gaps, in memory of its own."""
    x = x.contiguous()
    return x.as_strided(size, stride, x.storage_offset() + (storage_offset or 0))


def as_strided_scatter(
    x: torch.Tensor, src: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """The same of ``x.as_strided_scatter(src, size, stride, storage_offset)``."""
    x = x.contiguous()
    return torch.as_strided_scatter(x, src, size, stride, x.storage_offset() + (storage_offset or 0))


ANY_LAYOUT: Final[Mapping[Target, Target]] = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
    **dict.fromkeys((aten.as_strided.default, aten.as_strided_copy.default), as_strided),
    aten.as_strided_scatter.default: as_strided_scatter,
}
"""What computes the same for any layout."""
