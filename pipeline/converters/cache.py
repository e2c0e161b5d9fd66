"""Convert cache updates: rows of a key or value cache, written at positions that a tensor holds."""

from __future__ import annotations

from pipeline.aten.kv_cache_ops import CACHE_UPDATE
from pipeline.converters.binding import converts
from pipeline.impl import cache as impl
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net


@converts(CACHE_UPDATE)
def cache_update(net: Net, cache: Value, update: Value, starts: Value) -> ITensor:
    """cache_update(Tensor cache, Tensor update, Tensor starts) -> Tensor"""
    return impl.update(net, cache, update, starts)
