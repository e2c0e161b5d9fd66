"""Decompose grouped matmuls, in which each group of rows has its own matrix: the experts of a mixture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from pipeline.converters.decompositions import register_torch_trt_decomposition

aten = torch.ops.aten

SAME: Final[Mapping[str, Any]] = {"transformers::grouped_mm_fallback": aten._grouped_mm.default}
"""The equal ATen operator for each operator of another library, by name."""


FEW_ROWS: Final = 256
"""The most rows for which reading the matrices takes longer than multiplying each row by all of them."""

MOST: Final = 1 << 36
"""The most multiplications, of each row by every matrix, that are faster than leaving an engine: 0.2 ms on an H200."""


def is_faster_in_torch(rows: Sequence[int], matrices: Sequence[int]) -> bool:
    """Return whether PyTorch computes the grouped matmul with matrices of this shape faster, for every number of rows
    that engines are tuned for."""
    return min(rows) > FEW_ROWS and min(rows) * math.prod(matrices) > MOST


def known_as(target: Any) -> Any:
    """Return the ATen operator that another library's operator is equal to; any other target unchanged."""
    return SAME.get(target.name(), target) if isinstance(target, torch._ops.OpOverload) else target


@register_torch_trt_decomposition(aten._grouped_mm.default)
def grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor

    Rows ``offs[e - 1]`` to ``offs[e]`` of ``self`` times ``mat2[e]``; rows after the last group are 0. An engine's
    shapes must not depend on data, so every row is multiplied with every matrix, at the cost of one matmul per group.
    If the rows are few and their number is known, each gets a copy of its matrix instead. `is_faster_in_torch` decides
    which calls stay in PyTorch.
    """
    if bias is not None or self.dim() != 2 or mat2.dim() != 3 or offs is None:
        return NotImplemented
    groups = torch.arange(mat2.shape[0], device=self.device)
    rows = torch.arange(self.shape[0], device=self.device)
    of_row = (rows[:, None] >= offs[None, :]).sum(1)
    of_group = of_row[:, None] == groups[None, :]
    if isinstance(self.shape[0], int) and self.shape[0] < mat2.shape[0]:
        result = _by_row(self, mat2, of_row)
    else:
        result = _by_group(self, mat2, of_group)
    return result if out_dtype is None else result.to(out_dtype)


def _by_row(x: torch.Tensor, matrices: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Multiply each row by a copy of its matrix."""
    last = matrices.shape[0] - 1
    own = matrices.index_select(0, group.clamp(max=last))
    return torch.where((group <= last)[:, None], torch.bmm(x[:, None], own)[:, 0], 0.0)


def _by_group(x: torch.Tensor, matrices: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Compute one matmul: each row, padded with zeros to its group's position, by all matrices stacked."""
    spread = torch.where(chosen[:, :, None], x[:, None], 0.0)
    return torch.mm(spread.flatten(1), matrices.flatten(0, 1))
