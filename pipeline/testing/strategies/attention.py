"""Calls of scaled dot product attention."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.aten.annotation_ops import OPEN_MASK
from pipeline.aten.types import Leaf
from pipeline.testing.calls import Call, Dim
from pipeline.testing.strategies.common import Draw, calls, floats, named, shapes, tensors

aten = torch.ops.aten

HEADS = 4
QUERIES, KEYS = "n", "m"


def _operands(draw: Draw, dtype: torch.dtype, heads: int, leading: list[Dim]) -> tuple[object, ...]:
    size = draw(st.sampled_from((16, 8, 5, 20)))
    groups = [*leading[:-1], heads] if leading else []
    shapes = ([*leading, QUERIES, size], [*groups, KEYS, size], [*groups, KEYS, size])
    return tuple(draw(tensors(shape, dtype)) for shape in shapes)


def _mask(draw: Draw, dtype: torch.dtype, leading: list[Dim]) -> object:
    """Draw a mask: None, bools, or numbers to add; its leading dims are those of heads, or 1, or absent."""
    kind = draw(st.sampled_from((None, torch.bool, dtype)))
    if kind is None:
        return None
    parts: list[Dim] = draw(st.sampled_from((leading, [1] * len(leading), [*leading[:1], 1][: len(leading)], [])))
    return draw(tensors([*parts, QUERIES, KEYS], kind))


def _sizes(call_args: tuple[Any, ...]) -> dict[str, Any]:
    names = {d for spec in call_args if spec is not None for d in spec.shape if isinstance(d, str)}
    known = {"b": (1, 2, 4), QUERIES: (2, 3, 8), KEYS: (2, 5, 8)}
    return {name: known[name] for name in sorted(names)}


@calls(aten.scaled_dot_product_attention.default)
def attention(draw: Draw, target: object) -> Call:
    dtype, gqa = draw(floats), draw(st.sampled_from((False, False, True)))
    leading: list[Dim] = ["b", HEADS] if gqa else draw(st.sampled_from((["b", HEADS], ["b", HEADS], ["b"], [])))
    operands = (
        _operands(draw, dtype, 2 if gqa else HEADS, leading) if len(leading) == 2 else _plain(draw, dtype, leading)
    )
    mask = _mask(draw, dtype, leading)
    causal = mask is None and draw(st.booleans())
    kwargs = {"scale": draw(st.sampled_from((None, 0.3, 1.0))), "enable_gqa": gqa}
    return Call(target, (*operands, mask, 0.0, causal), kwargs, _sizes((*operands, mask)))


def _plain(draw: Draw, dtype: torch.dtype, leading: list[Dim]) -> tuple[Leaf, ...]:
    """Draw arguments without heads; the values may have a size of their own."""
    size, other = draw(st.sampled_from(((8, 8), (16, 16), (6, 3), (16, 8), (5, 20))))
    shapes = ([*leading, QUERIES, size], [*leading, KEYS, size], [*leading, KEYS, other])
    return tuple(draw(tensors(shape, dtype)) for shape in shapes)


@calls(aten._scaled_dot_product_flash_attention_for_cpu.default)
def for_cpu(draw: Draw, target: object) -> Call:
    dtype = draw(floats)
    leading: list[Dim] = ["b", HEADS]
    operands, mask = _operands(draw, dtype, HEADS, leading), _mask(draw, dtype, leading)
    causal = mask is None and draw(st.booleans())
    kwargs = {"attn_mask": mask, "scale": draw(st.sampled_from((None, 0.3)))}
    return Call(target, (*operands, 0.0, causal), kwargs, _sizes((*operands, mask)), (0,))


@calls(OPEN_MASK)
def open_mask(draw: Draw, target: Any) -> Call:
    dtype = draw(st.just(torch.bool) | floats)
    return draw(named(Call(target, (draw(tensors(draw(shapes(2, 4)), dtype)),))))


STRATEGIES = {**attention, **for_cpu, **open_mask}
