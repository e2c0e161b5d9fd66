"""Calls of convolutions."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import Draw, calls, floats, named, tensors

aten = torch.ops.aten


@calls(aten.convolution.default)
def convolution(draw: Draw, target: object) -> Call:
    rank, transposed = draw(st.sampled_from((2, 1, 3))), draw(st.booleans())
    dtype, groups = draw(floats), draw(st.sampled_from((1, 2, 1, 3)))

    def each(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=rank, max_size=rank))

    channels, maps = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, stride, dilation = each(st.integers(1, 3)), each(st.integers(1, 3)), each(st.integers(1, 2))
    weight = [channels, maps // groups] if transposed else [maps, channels // groups]
    more = [draw(st.integers(0, max(s, d) - 1)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    shape = [draw(st.integers(1, 2)), channels, *each(st.integers(5, 7))]
    constant = draw(st.booleans())
    specs = (
        draw(tensors(shape, dtype)),
        draw(tensors([*weight, *kernel], dtype, constant=constant)),
        draw(st.none() | tensors([maps], dtype, constant=constant)),
    )
    call = Call(target, (*specs, stride, each(st.integers(0, 2)), dilation, transposed, more, groups))
    return draw(named(call, {0: [0, *range(2, rank + 2)]}, least=5))


STRATEGIES = convolution
