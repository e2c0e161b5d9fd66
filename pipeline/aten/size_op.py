"""Define ``pipeline::size``, which returns a tensor's size as a tensor, for sizes that depend on data."""

from __future__ import annotations

import torch


@torch.library.custom_op("pipeline::size", mutates_args=())
def size(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the size of a dim at run time, as a 0-d int64 tensor."""
    return torch.tensor(x.shape[dim], device=x.device)


@size.register_fake
def _(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.new_empty((), dtype=torch.int64)


SIZE = torch.ops.pipeline.size.default
