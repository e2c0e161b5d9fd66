"""Define two operators that write rows into a KV cache: one for engines, and one for PyTorch.
Engines compute ``pipeline::cache_update`` in place; PyTorch computes ``pipeline::cache_write``."""

from __future__ import annotations

import torch


@torch.library.custom_op("pipeline::cache_update", mutates_args=())
def cache_update(cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return a copy of the cache in which each batch's rows from its start on are replaced by the update.

    Args:
        cache: [B, N, S, D].
        update: [B, N, L, D], of the cache's dtype.
        starts: [B] or [1], integers; rows ``start`` to ``start + L - 1`` of dim 2 are written.

    Raises:
        IndexError: a row is outside 0 to S - 1.
    """
    return cache_update_(cache.clone(), update, starts)


def cache_positions(cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return the row indices [B, L] that an update writes; raise an `IndexError` if an index is outside of the cache.
    On a GPU and under torch.compile, a device-side assertion checks the indices, so that the host does not wait."""
    steps = torch.arange(update.shape[2], device=update.device)
    positions = starts.to(torch.int64).reshape(-1, 1).expand(update.shape[0], 1) + steps
    if positions.device.type == "cpu" and positions.numel() and not torch.compiler.is_compiling():
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= cache.shape[2]:
            raise IndexError(f"the update writes rows {low} to {high} of a KV cache with only {cache.shape[2]} rows")
    return positions


@torch.library.custom_op("pipeline::cache_write", mutates_args=())
def cache_write(cache: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return a copy of the cache with rows written along a dim at the positions ``index`` [L], as by ``index_copy``."""
    return cache.index_copy(dim, index, source)


def cache_update_(cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Write an update into the cache itself, from each batch's start on (see `cache_update`), and return the cache."""
    positions = cache_positions(cache, update, starts)
    cache[torch.arange(update.shape[0], device=update.device)[:, None], :, positions] = update.transpose(1, 2)
    return cache


def cache_write_(cache: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Write rows into the cache itself at the positions in ``index`` (see `cache_write`), and return the cache."""
    return cache.index_copy_(dim, index, source)


@cache_write.register_fake
def _(cache: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(cache, memory_format=torch.contiguous_format)


@cache_update.register_fake
def _(cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(cache, memory_format=torch.contiguous_format)


CACHE_UPDATE = torch.ops.pipeline.cache_update.default
"""``pipeline::cache_update(Tensor cache, Tensor update, Tensor starts) -> Tensor``"""

CACHE_WRITE = torch.ops.pipeline.cache_write.default
"""``pipeline::cache_write(Tensor cache, int dim, Tensor index, Tensor source) -> Tensor``"""

IN_PLACE = {CACHE_UPDATE: cache_update_, CACHE_WRITE: cache_write_}
"""The in-place version of each cache operator, called only if nothing reads the old cache afterwards."""
