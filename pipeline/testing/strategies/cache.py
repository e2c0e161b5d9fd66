"""Calls of cache updates: one start for all, or one for each batch, the rows inside the cache."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.aten.kv_cache_ops import CACHE_UPDATE
from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import Draw, calls, floats, named, tensors


@calls(CACHE_UPDATE)
def cache_update(draw: Draw, target: Any) -> Call:
    batch, heads, size, width = (draw(st.integers(1, most)) for most in (3, 3, 6, 4))
    length, dtype = draw(st.integers(1, size)), draw(floats)
    starts = draw(tensors((draw(st.sampled_from((1, batch))),), torch.int64, ("below", size - length + 1)))
    cache, update = tensors((batch, heads, size, width), dtype), tensors((batch, heads, length, width), dtype)
    return draw(named(Call(target, (draw(cache), draw(update), starts)), {0: (1, 3), 1: (1, 3)}))


STRATEGIES = {**cache_update}
