"""Calls that look up rows of a table."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import Draw, calls, dtypes, floats, ints, named, shapes, tensors

aten = torch.ops.aten


@calls(aten.embedding.default)
def embedding(draw: Draw, target: object) -> Call:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    weight = draw(tensors((rows, columns), draw(dtypes), constant=draw(st.booleans())))
    index = draw(tensors(draw(shapes(0, 3)), draw(ints), ("below", rows)))
    padding = draw(st.sampled_from([(), (0,), (-1,)]))
    return draw(named(Call(target, (weight, index, *padding)), {1: range(len(index.shape))}))


@calls(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(draw: Draw, target: object) -> Call:
    rows, count, mode = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(0, 2))
    dtype, last = draw(floats), draw(st.booleans())
    starts = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    starts = [0, *starts, *([count] if last else [])]
    weight = draw(tensors((rows, draw(st.integers(1, 3))), dtype, constant=draw(st.booleans())))
    index = draw(tensors((count,), torch.int64, ("below", rows)))
    offsets = draw(tensors((len(starts),), torch.int64, ("given", starts)))
    scale = draw(st.none() | tensors((count,), dtype)) if mode == 0 else None
    padding = draw(st.sampled_from([-1, 0]))
    if draw(st.integers(0, 2)) == 0:
        index = draw(tensors(("n",), torch.int64, ("below", rows)))
        offsets = draw(tensors((2,), torch.int64, ("given", [0, 1])))
        return Call(target, (weight, index, offsets, False, mode), sizes={"n": (1, 3, 6)}, outputs=(0,))
    return Call(target, (weight, index, offsets, False, mode, False, scale, last, padding), outputs=(0,))


STRATEGIES = {**embedding, **embedding_bag}
