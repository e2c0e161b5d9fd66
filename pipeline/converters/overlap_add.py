"""Decompose overlap-add, the last step of ``istft``."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.aten.types import aten
from pipeline.converters.decompositions import register_torch_trt_decomposition


@register_torch_trt_decomposition(aten.unfold_backward.default)
def unfold_backward(grad_in: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor

    Windows are cut into pieces as long as a step. Pieces at the same position in their windows do not overlap: they
    form a row, and the rows, one per piece of a window, are added. torch's decomposition adds one element of the
    windows at a time.
    """
    if not input_sizes:
        return grad_in.squeeze(0)
    dim %= len(input_sizes)
    pieces = -(-size // step)
    windows = functional.pad(grad_in.movedim(dim, -2), (0, pieces * step - size))
    *others, count, _ = windows.shape
    windows = windows.reshape(*others, count, pieces, step)
    rows = [windows.select(-2, piece).reshape(*others, count * step) for piece in range(pieces)]
    total = reduce(torch.add, (functional.pad(row, (i * step, (pieces - i) * step)) for i, row in enumerate(rows)))
    return total.narrow(-1, 0, input_sizes[dim]).movedim(-1, dim).expand(input_sizes)
