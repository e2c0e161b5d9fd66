"""The size of a tensor as a tensor: ``pipeline::size``, for sizes that data has."""

from __future__ import annotations

import torch


@torch.library.custom_op("pipeline::size", mutates_args=())
def size(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the size of a dim as an int64 tensor without dims: what the tensor has, whatever a graph knows of it."""
    return torch.tensor(x.shape[dim], device=x.device)


@size.register_fake
def _(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.new_empty((), dtype=torch.int64)


SIZE = torch.ops.pipeline.size.default
