"""Infer the sizes of tensors that a user's own layers return: the inputs' sizes, if the layer's kind preserves them."""

from __future__ import annotations

from typing import Final

from pipeline.aten.types import Argument
from pipeline.impl import base
from pipeline.network.context import ConversionContext
from pipeline.trt import layer_kind, trt

KEEPS: Final = frozenset(
    {"ACTIVATION", "CAST", "CUMULATIVE", "IDENTITY", "LRN", "NORMALIZATION", "SCALE", "SOFTMAX", "UNARY"}
)
"""Kinds of layers whose result has the shape of their first input."""

BROADCASTS: Final = frozenset({"ELEMENTWISE", "PARAMETRIC_RELU", "SELECT"})
"""Kinds whose result has the broadcast shape of all inputs, which have one rank."""


def sizes_of(ctx: ConversionContext, x: trt.ITensor) -> list[Argument]:
    """Return the sizes of a tensor: ints, expressions of the program's symbols, or None where unknown."""
    known = base.known_sizes(ctx, x)
    if None not in known or (layer := _maker(ctx, x)) is None:
        return known
    kind = layer_kind(layer)
    inputs = [layer.get_input(i) for i in range(layer.num_inputs if kind in BROADCASTS else 1)]
    if kind not in KEEPS | BROADCASTS or any(each is None for each in inputs):
        return known
    columns = zip(*(sizes_of(ctx, each) for each in inputs), strict=True)
    found = [size if size is not None else _one(column) for size, column in zip(known, columns, strict=True)]
    base.with_sizes(ctx, x, found)
    return found


def _one(column: tuple[Argument, ...]) -> Argument:
    """Return the size that these sizes of one dim broadcast to; None if it is unknown."""
    sizes = [size for size in column if size != 1]
    return sizes[0] if all(size == sizes[0] for size in sizes) else None


def _maker(ctx: ConversionContext, x: trt.ITensor) -> Argument:
    """Return the layer that outputs a tensor; None for an input of the network."""
    layers = (ctx.net.get_layer(i) for i in reversed(range(ctx.net.num_layers)))
    return next((layer for layer in layers if any(layer.get_output(j) is x for j in range(layer.num_outputs))), None)
