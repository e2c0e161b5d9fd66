"""Replace operators that depend on their input's memory layout by functions that accept any layout.

Values of a program have any layout: engines return contiguous tensors, whatever the layout in the example. So programs
contain ``as_strided`` of contiguous tensors only (`pipeline.capture.as_strided`), and executors of a program's nodes
run the functions of this table instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from pipeline.aten.types import Target, aten


def as_strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Return ``x.contiguous().as_strided(size, stride, storage_offset)`` in new memory."""
    x = x.contiguous()
    return x.as_strided(size, stride, x.storage_offset() + (storage_offset or 0))


def as_strided_scatter(
    x: torch.Tensor, src: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Return ``x.contiguous().as_strided_scatter(src, size, stride, storage_offset)``."""
    x = x.contiguous()
    return torch.as_strided_scatter(x, src, size, stride, x.storage_offset() + (storage_offset or 0))


ANY_LAYOUT: Final[Mapping[Target, Target]] = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
    **dict.fromkeys((aten.as_strided.default, aten.as_strided_copy.default), as_strided),
    aten.as_strided_scatter.default: as_strided_scatter,
}
"""For each operator, the function that computes the same for any layout."""
