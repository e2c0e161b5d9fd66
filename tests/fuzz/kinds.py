"""Kinds of random programs: the shapes and dtypes of their inputs, and the statements that they are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen

from pipeline.testing.calls import Size
from tests.fuzz import expressions, layers, mutations, views
from tests.fuzz.scope import Scope

Shape = tuple[int | str | Size, ...]
Statement = Callable[[Scope], object]


@frozen
class Kind:
    """Shapes of inputs of floats and of others, dtypes (the more frequent ones more often, as all choices here), one in
    how many inputs is of half precision, statements, and how many of them."""

    shapes: tuple[Shape, ...]
    others: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    half: int
    statements: tuple[Statement, ...]
    counts: tuple[int, ...]


_SHAPES: tuple[Shape, ...] = (
    *(("n", 4), ("n", "m"), ("n", 3, 4), ("n", "m", 4), (3, "n"), ("n",), (4, 3), ("m", 4), ("n", 4), (), (3,)),
    *((Size("n", 2), 4), (Size("n", 1, 1),), (2, "n", "m"), ("m", "n"), ("m", "k"), (1, "n", 4), (5,), ("n", 1)),
    *(("n", 7), ("n", "m", 7), ("m", 7)),  # TensorRT adds a zero to sums of odd numbers of elements
)
_VECTOR, _IMAGE, _SEQUENCE = map(layers.layer, (layers.VECTORS, layers.IMAGES, layers.SEQUENCES))

TENSORS = Kind(
    *(_SHAPES, _SHAPES, (torch.float32,) * 9 + (torch.int64, torch.int64, torch.bool, torch.int64), 25),
    statements=(
        *(expressions.unary, expressions.binary, views.view, expressions.unary, expressions.binary, views.view),
        *(mutations.mutate, _VECTOR, expressions.reduce, mutations.update, expressions.size, views.like),
        *(expressions.product, expressions.join, expressions.compare, expressions.where, _VECTOR, mutations.mutate),
        *(expressions.index, expressions.order, mutations.masked, mutations.cache, expressions.constant),
        *(expressions.loose, mutations.copied, mutations.copied, expressions.branch, expressions.scalar),
        *(expressions.row, expressions.unary, expressions.binary, views.view),
    ),
    counts=(8, 12, 16, 20, 28, 40),
)
_BESIDE_LAYERS: tuple[Statement, ...] = (
    *(expressions.unary, expressions.binary, views.view, mutations.mutate, mutations.update, expressions.size),
    *(expressions.join, expressions.row, expressions.order, mutations.copied, expressions.reduce, expressions.scalar),
)
IMAGES = Kind(
    shapes=(
        *(("n", 3, "h", "w"), (2, 4, 9, 8), ("n", 4, 9, 8), (1, 2, "h", "w"), (2, 3, "h", 8), ("n", 2, "h", "h")),
        *(("n", 3, "w"), (1, 4, 9), ("n", 2, 4, "h", 5), (1, 2, 4, 5, 6)),
    ),
    others=(("n",), ("n", 1, "h", "w")),
    dtypes=(torch.float32,) * 9 + (torch.int64, torch.bool),
    half=6,
    statements=(_IMAGE,) * 24 + _BESIDE_LAYERS,
    counts=(2, 4, 6, 9, 14),
)
SEQUENCES = Kind(
    shapes=(("n", "t", 8), (2, 5, 8), ("n", 5, 8), (1, "t", 4), (2, "t", 6), ("t", 8)),
    others=(("n", "t"), (2, "t"), ("n",), (2, 5)),
    dtypes=(torch.float32,) * 5 + (torch.int64, torch.int64),
    half=6,
    statements=(_SEQUENCE,) * 22 + (_VECTOR, mutations.keys, mutations.keys, *_BESIDE_LAYERS),
    counts=(2, 4, 6, 9, 14),
)
KINDS = (TENSORS, IMAGES, SEQUENCES, TENSORS)

RANGES = ((1, 3, 7), (2, 4, 6), (1, 2, 5), (3, 5, 8), (2, 3, 9), (2, 2, 4), (1, 4, 4))
LONG = ((6, 9, 13), (7, 8, 12), (4, 6, 7), (8, 8, 11))
"""Of the sizes of images, and of numbers of tokens."""


def ranges(name: str) -> tuple[tuple[int, int, int], ...]:
    """The ranges that a size of this name may have."""
    return LONG if name in "hwt" else RANGES
