"""Write rows into a cache: in place by TensorRT's cache update layer, or by a scatter."""

from __future__ import annotations

import torch

from pipeline.impl import base, scatter
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.index import iota
from pipeline.network.net import Net
from pipeline.trt import CAPABILITIES, trt

DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""The dtypes of TensorRT's cache update layer; it refuses others at the build."""


@block
def update(net: Net, cache: Value, rows: Value, starts: Value) -> ITensor:
    """Return the cache [B, N, S, D] with rows [B, N, L, D] written from ``starts`` ([B] or [1]) on.


    The layer's cache must be an input of the network and its result an output; else rows are scattered.
    """
    source, dtype = base.tensor(net, cache), base.dtype_of(cache)
    rows, starts = base.tensor(net, rows, dtype), base.tensor(net, starts)
    fits = CAPABILITIES.kv_cache_update and dtype in DTYPES and min(base.dims(source)[1:]) > 0
    if not (fits and source.is_network_input and _is_returned(net)):
        return _scattered(net, source, rows, starts)
    places = base.expand(net, base.cast(net, starts, torch.int32), [base.known_sizes(net, rows)[0]])
    result: ITensor = net.add("kv_cache_update", source, rows, places, trt.KVCacheMode.LINEAR).get_output(0)
    net.ctx.in_place.append(result)
    return result


def _is_returned(net: Net) -> bool:
    """Return whether the current node is an output of the program."""
    return net.ctx.node is not None and any(user.op == "output" for user in net.ctx.node.users)


def _scattered(net: Net, cache: ITensor, rows: ITensor, starts: ITensor) -> ITensor:
    batch, heads, length, width = base.known_sizes(net, rows)
    if length == 0:
        return cache
    steps = base.tensor(net, iota(net, [length], [1], 0))
    first = base.unsqueeze(net, base.cast(net, starts, torch.int64), [1])
    places = base.elementwise(net, "SUM", first, base.unsqueeze(net, steps, [0]))
    index = base.expand(net, base.unsqueeze(net, places, [1, 3]), [batch, heads, length, width])
    return scatter.scatter(net, cache, 2, index, rows)
