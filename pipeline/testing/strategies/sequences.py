"""Random calls of operators over sequences: attention, cache updates, recurrences and recurrent layers.

Recurrences have one token, one chunk, or several chunks. Sequences of recurrent layers have equal or different lengths
(packed sequences); layers are uni- or bidirectional, with and without biases and projection."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.aten.kv_cache_ops import CACHE_UPDATE
from pipeline.aten.own_ops import LINEAR_ATTENTION, OPEN_MASK, SELECTIVE_SCAN
from pipeline.aten.packed_rnn_ops import LAYERS
from pipeline.aten.types import Target, aten
from pipeline.testing.calls import Call, Dim, TensorSpec
from pipeline.testing.strategies.common import Draw, floats, name_sizes, shapes, strategy, tensors

HEADS = 4
QUERIES, KEYS = "n", "m"


def _draw_queries_keys_values(
    draw: Draw, dtype: torch.dtype, leading: list[Dim], heads: int = HEADS
) -> tuple[TensorSpec, ...]:
    """Generate queries, keys and values of attention, in this order. Their first dims are ``leading``: batch and heads,
    where keys and values have ``heads`` heads, fewer in grouped-query attention; or a batch, or none, where values may
    differ in the last size."""
    grouped, equal = len(leading) == 2, ((16, 16), (8, 8), (5, 5), (20, 20))
    size, of_values = draw(st.sampled_from(equal if grouped else ((8, 8), (16, 16), (6, 3), (16, 8), (5, 20))))
    groups = [*leading[:-1], heads] if grouped else leading
    shapes = ([*leading, QUERIES, size], [*groups, KEYS, size], [*groups, KEYS, of_values])
    return tuple(draw(tensors(shape, dtype)) for shape in shapes)


def _draw_mask(draw: Draw, dtype: torch.dtype, leading: list[Dim]) -> object:
    """Generate an attention mask: None, bools, or numbers to add; its leading dims are ``leading``, or 1, or absent."""
    kind = draw(st.sampled_from((None, torch.bool, dtype)))
    if kind is None:
        return None
    parts: list[Dim] = draw(st.sampled_from((leading, [1] * len(leading), [*leading[:1], 1][: len(leading)], [])))
    return draw(tensors([*parts, QUERIES, KEYS], kind))


def _ranges_of_named_sizes(specs: tuple[Any, ...]) -> dict[str, Any]:
    """Return ``{"b": (min, opt, max), …}`` for the names in these `TensorSpec` s (or None), to be ``Call.sizes``."""
    names = {name for spec in specs if spec is not None for name in spec.size_names}
    known = {"b": (1, 2, 4), QUERIES: (2, 3, 8), KEYS: (2, 5, 8)}
    return {name: known[name] for name in sorted(names)}


@strategy(aten.scaled_dot_product_attention.default)
def draw_attention(draw: Draw, target: object) -> Call:
    dtype, gqa = draw(floats), draw(st.sampled_from((False, False, True)))
    leading: list[Dim] = ["b", HEADS] if gqa else draw(st.sampled_from((["b", HEADS], ["b", HEADS], ["b"], [])))
    operands = _draw_queries_keys_values(draw, dtype, leading, 2 if gqa else HEADS)
    mask = _draw_mask(draw, dtype, leading)
    causal = mask is None and draw(st.booleans())
    kwargs = {"scale": draw(st.sampled_from((None, 0.3, 1.0))), "enable_gqa": gqa}
    return Call(target, (*operands, mask, 0.0, causal), kwargs, _ranges_of_named_sizes((*operands, mask)))


@strategy(aten._scaled_dot_product_flash_attention_for_cpu.default)
def draw_flash_attention_for_cpu(draw: Draw, target: object) -> Call:
    """Generate calls of ``_scaled_dot_product_flash_attention_for_cpu`` that request only the first result."""
    dtype = draw(floats)
    leading: list[Dim] = ["b", HEADS]
    operands, mask = _draw_queries_keys_values(draw, dtype, leading), _draw_mask(draw, dtype, leading)
    causal = mask is None and draw(st.booleans())
    kwargs = {"attn_mask": mask, "scale": draw(st.sampled_from((None, 0.3)))}
    return Call(target, (*operands, 0.0, causal), kwargs, _ranges_of_named_sizes((*operands, mask)), (0,))


@strategy(OPEN_MASK)
def draw_open_mask(draw: Draw, target: Any) -> Call:
    """Generate calls of ``OPEN_MASK``, which marks attention masks with an unmasked key in each row."""
    dtype = draw(st.just(torch.bool) | floats)
    return draw(name_sizes(Call(target, (draw(tensors(draw(shapes(2, 4)), dtype)),))))


@strategy(CACHE_UPDATE)
def draw_cache_update(draw: Draw, target: Any) -> Call:
    """Generate calls that write new keys or values into a KV cache, from a given position on."""
    batch, heads, size, width = (draw(st.integers(1, most)) for most in (3, 3, 6, 4))
    length, dtype = draw(st.integers(1, size)), draw(floats)
    starts = draw(tensors((draw(st.sampled_from((1, batch))),), torch.int64, ("below", size - length + 1)))
    cache, update = tensors((batch, heads, size, width), dtype), tensors((batch, heads, length, width), dtype)
    return draw(name_sizes(Call(target, (draw(cache), draw(update), starts)), {0: (1, 3), 1: (1, 3)}))


TOKENS: tuple[Dim, ...] = ("t", "t", 1, 5, 70, 300)
"""Numbers of tokens to test: dynamic, 1, within one chunk, and over several chunks."""
FADES = ("uniform", -0.8, 0.0)
WIDTHS: st.SearchStrategy[Dim] = st.integers(1, 6) | st.just("w")


def _draw_sized_call(draw: Draw, target: object, arguments: tuple[TensorSpec | None, ...]) -> Call:
    """Generate a call of the target with these arguments: choose a value for each size that they name."""
    names = sorted({name for each in arguments if each is not None for name in each.size_names})
    return Call(target, arguments, sizes={name: draw(st.integers(1, 90 if name == "t" else 4)) for name in names})


@strategy(LINEAR_ATTENTION)
def draw_linear_attention(draw: Draw, target: object) -> Call:
    """Generate calls of the custom operator ``pipeline::linear_attention``, with and without ``beta``."""
    dtype, width, of_values = draw(floats), draw(WIDTHS), draw(WIDTHS)
    row: tuple[Dim, ...] = ("n", draw(st.integers(1, 3) | st.just("h")), draw(st.sampled_from(TOKENS)))
    query, key = (draw(tensors((*row, width), dtype, ("uniform", -0.5, 0.5))) for _ in range(2))
    value = draw(tensors((*row, of_values), dtype, "unit"))
    decay = draw(tensors((*row, width) if draw(st.booleans()) else row, torch.float32, FADES))
    beta = draw(tensors(row, dtype, ("uniform", 0.0, 1.0))) if draw(st.booleans()) else None
    state = draw(tensors(("n", row[1], of_values, width), torch.float32, "unit"))
    return _draw_sized_call(draw, target, (query, key, value, decay, beta, state))


@strategy(SELECTIVE_SCAN)
def draw_selective_scan(draw: Draw, target: object) -> Call:
    """Generate calls of the custom operator ``pipeline::selective_scan`` (the recurrence of Mamba)."""
    dtype, tokens, width, states = draw(floats), draw(st.sampled_from(TOKENS)), draw(WIDTHS), draw(st.integers(1, 4))
    input = draw(tensors(("n", width, tokens), dtype, "unit"))
    step = draw(tensors(("n", width, tokens), dtype, ("uniform", 0.0, 1.0)))
    constant = isinstance(width, int) and draw(st.booleans())
    a = draw(tensors((width, states), torch.float32, FADES, constant=constant))
    b, c = (draw(tensors(("n", states, tokens), dtype, "unit")) for _ in range(2))
    state = draw(tensors(("n", width, states), torch.float32, "unit"))
    return _draw_sized_call(draw, target, (input, step, a, b, c, state))


GATES = {aten.lstm.input: 4, aten.gru.input: 3, aten.rnn_tanh.input: 1, aten.rnn_relu.input: 1}
GATES |= {LAYERS[getattr(aten, t._schema.name.removeprefix("aten::")).data]: n for t, n in GATES.items()}
"""The number of gates of each recurrent layer: an LSTM has four."""
LENGTHS: tuple[Dim, ...] = ("t", "t", 1, 2, 17)
"""Lengths of sequences to test: dynamic, some that are unrolled, and one that becomes a loop."""


@strategy(*GATES)
def draw_recurrent_layer(draw: Draw, target: Target) -> Call:
    """Generate recurrent layers on sequences of one length, or on packed ones, each of which has its own length."""
    packed, gates = "packed" in str(target), GATES[target]
    features, hidden, count = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    directions, biased, constant = draw(st.integers(1, 2)), draw(st.booleans()), draw(st.booleans())
    projected = draw(st.none() | st.integers(1, hidden - 1)) if gates == 4 and hidden > 1 else None
    dtype, steps = draw(floats), draw(st.sampled_from(LENGTHS))
    output: int = projected or hidden
    rows = gates * hidden
    shapes: list[tuple[Dim, ...]] = []
    for layer in range(count):
        given: int = features if layer == 0 else output * directions
        biases: list[tuple[Dim, ...]] = [(rows,), (rows,)] if biased else []
        own: list[tuple[Dim, ...]] = [(rows, given), (rows, output), *biases]
        shapes += (own + ([(projected, hidden)] if projected else [])) * directions
    params = [draw(tensors(shape, dtype, values="unit", constant=constant)) for shape in shapes]
    widths = (output, hidden) if gates == 4 else (hidden,)
    states = [draw(tensors((count * directions, "n", width), dtype, values="unit")) for width in widths]
    batch_first = not packed and draw(st.booleans())
    x = draw(tensors(("n", steps, features) if batch_first else (steps, "n", features), dtype, values="unit"))
    lengths = [draw(tensors(("n",), torch.int64, ("between", 1, steps)))] if packed else []
    sizes: dict[str, int] = {name: draw(st.integers(1, 3)) for name in ("n", "t") if name in x.size_names}
    options = (biased, count, 0.0, draw(st.booleans()), directions == 2, *([] if packed else [batch_first]))
    return Call(target, (x, *lengths, states if gates == 4 else states[0], params, *options), sizes=sizes)
