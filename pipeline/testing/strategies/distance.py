"""Calls of distances and of sums of products."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import Draw, calls, tensors

aten = torch.ops.aten

orders = st.sampled_from((2.0, 1.0, 0.0, 3.0, 0.5, float("inf")))


@calls(aten._cdist_forward.default)
def cdist(draw: Draw, target: object) -> Call:
    batch, size = draw(st.sampled_from(((), ("b",)))), draw(st.integers(1, 4))
    a, b = (draw(tensors((*batch, name, size), torch.float32)) for name in ("n", "m"))
    sizes = {"n": 3, "m": 4, **({"b": 2} if batch else {})}
    return Call(target, (a, b, draw(orders), None), sizes=sizes)


@calls(aten._pdist_forward.default)
def pdist(draw: Draw, target: object) -> Call:
    shape = (draw(st.integers(2, 5)), draw(st.integers(1, 4)))
    return Call(target, (draw(tensors(shape, torch.float32)), draw(orders)))


@calls(aten.linalg_cross.default)
def cross(draw: Draw, target: object) -> Call:
    dim = draw(st.sampled_from((-1, 1, -2, 2)))
    shape: list[Any] = ["n", 3, 2] if dim in (1, -2) else ["n", 2, 3]
    dtype = draw(st.sampled_from((torch.float32, torch.int64)))
    a, b = (draw(tensors(shape, dtype)) for _ in range(2))
    return Call(target, (a, b), {"dim": dim}, {"n": 2})


@calls(aten.addbmm.default)
def addbmm(draw: Draw, target: object) -> Call:
    f, i = torch.float32, torch.int64
    dtype, beta, alpha = draw(st.sampled_from([(i, 0.5, 1.5), (f, 2.0, 3.0), (f, 0.0, 1.5), (i, 1.0, 3.0)]))
    specs = [draw(tensors(shape, dtype)) for shape in (("n", 4), (2, "n", 3), (2, 3, 4))]
    return Call(target, tuple(specs), {"beta": beta, "alpha": alpha}, {"n": 3})


STRATEGIES = {**cdist, **pdist, **cross, **addbmm}
