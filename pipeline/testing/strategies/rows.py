"""Calls of linear layers with a norm before them, or added to something: of few rows, and of one."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.aten.rows import LINEAR_ONTO, NORMED_LINEAR
from pipeline.testing.calls import Call, Dim, TensorSpec
from pipeline.testing.strategies.common import Draw, calls, floats, tensors

INNER, LEADING = (1, 3, 32, 64), ((1,), (1, 1), ("n",), (2, "n"))


def _layer(draw: Draw, dtype: torch.dtype) -> tuple[tuple[Dim, ...], TensorSpec, TensorSpec | None]:
    """The sizes before the last one, the weight, and the bias."""
    inner, columns, constant = draw(st.sampled_from(INNER)), draw(st.integers(1, 4)), draw(st.booleans())
    bias = draw(st.none() | tensors((columns,), dtype, constant=constant))
    return draw(st.sampled_from(LEADING)), draw(tensors((columns, inner), dtype, constant=constant)), bias


def _sizes(draw: Draw, leading: tuple[Dim, ...]) -> dict[str, tuple[int, int, int]]:
    return {"n": (1, draw(st.integers(1, 3)), 4)} if "n" in leading else {}


@calls(NORMED_LINEAR)
def normed_linear(draw: Draw, target: Any) -> Call:
    dtype, first = draw(floats), draw(st.booleans())
    leading, weight, bias = _layer(draw, dtype)
    inner = weight.shape[1]
    gain = draw(tensors((inner,), dtype if first else draw(st.sampled_from((dtype, torch.float32)))))
    x, eps = draw(tensors((*leading, inner), dtype)), draw(st.sampled_from((1e-6, 1e-3)))
    return Call(target, (x, gain, weight, bias, eps, first), {}, _sizes(draw, leading))


@calls(LINEAR_ONTO)
def linear_onto(draw: Draw, target: Any) -> Call:
    dtype = draw(floats)
    leading, weight, bias = _layer(draw, dtype)
    x, column = tensors((*leading, weight.shape[1]), dtype), tensors((*leading, weight.shape[0], 1), dtype)
    return Call(target, (draw(x), weight, bias, draw(column)), {}, _sizes(draw, leading))


STRATEGIES = {**normed_linear, **linear_onto}
