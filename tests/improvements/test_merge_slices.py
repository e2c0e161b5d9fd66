"""merge_slices: what neighbouring slices go through alike is computed once, if nothing is left to fuse behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.improvements.programs import agree, decomposed, improved, targets

Tensor = torch.Tensor
aten = torch.ops.aten
COS, SIN = torch.rand(1, 1, 5, 8), torch.rand(1, 1, 5, 8)
X = torch.randn(2, 5, 6, 8, generator=torch.Generator().manual_seed(0))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As decoders do: halves of the last dim change places."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Model(nn.Module):
    """A function of heads [N, S, 6, 8], cosines and sines [1, 1, S, 8]."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(torch.rand(8) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        """Products that begin kernels."""
        return self.function(x, cos, sin, self.weights)


def cut(x: Tensor, heads: int, gap: int = 0) -> tuple[Tensor, Tensor]:
    """Queries [N, heads, S, 8], and keys of the other heads."""
    return x[:, :, :heads].transpose(1, 2), x[:, :, heads + gap :].transpose(1, 2)


def attended(query: Tensor, key: Tensor) -> Tensor:
    return torch.matmul(query[:, :1], key[:, :1].transpose(-1, -2))


def rotation(heads: int) -> Callable[..., Any]:
    def function(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
        query, key = cut(x, heads)
        return attended(rotated(query, cos, sin), rotated(key, cos, sin))

    return function


LENGTHS = {"x": {1: Dim("length", max=9)}, "cos": {2: Dim("length", max=9)}, "sin": {2: Dim("length", max=9)}}


@pytest.mark.parametrize("dynamic", [None, LENGTHS], ids=["static", "dynamic"])
@pytest.mark.parametrize("heads", [4, 3])
def test_a_rotation_of_queries_and_keys_is_one(heads: int, dynamic: Any) -> None:
    before = decomposed(Model(rotation(heads)), X, COS, SIN, dynamic_shapes=dynamic)
    after = improved(before, "merge_slices")
    assert targets(before).count("cat.default") == 2 and targets(after).count("cat.default") == 1
    assert targets(after).count("neg.default") == 1 and targets(after).count("mul.Tensor") == 2
    agree(before, after, X, COS, SIN, rtol=0, atol=0)


def scaled(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
    """Other factors: another computation."""
    query, key = cut(x, 4)
    return attended(query * cos, key * sin)


def normed(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
    """Alike up to the weights: a kernel of its own for that would be one more."""
    query, key = (part * cos * w for part, w in zip(cut(x, 4), weights, strict=True))
    return attended(query, key)


def apart(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
    """Slices that are no neighbours."""
    query, key = cut(x, 3, gap=1)
    return attended(rotated(query, cos, sin), rotated(key, cos, sin))


def mixed(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
    """Each reads the other."""
    query, key = (part * cos for part in cut(x, 3))
    return attended(query * key, key)


def in_another_order(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
    query, key = cut(x, 3)
    return attended(query - cos, cos - key)


def along_the_heads(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
    """A softmax over the heads needs all of its own."""
    query, key = (torch.softmax(part.exp(), 1) for part in cut(x, 3))
    return attended(query, key)


def sliced_again(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
    """All heads of each, by numbers that are not all heads of both."""
    query, key = (aten.slice.Tensor(part * cos, 1, 0, 3) for part in cut(x, 3))
    return attended(rotated(query, cos, sin), rotated(key, cos, sin))


def uncomputed(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
    return attended(*cut(x, 4))


@pytest.mark.parametrize(
    "function",
    [scaled, normed, apart, mixed, in_another_order, along_the_heads, uncomputed],
    ids=lambda f: f.__name__,
)
def test_what_is_not_alike_to_the_end_stays(function: Callable[..., Any]) -> None:
    before = decomposed(Model(function), X, COS, SIN)
    after = improved(before, "merge_slices")
    assert targets(after) == targets(before)


def test_a_slice_of_all_rows_ends_what_is_alike() -> None:
    before = decomposed(Model(sliced_again), X, COS, SIN)
    after = improved(before, "merge_slices")
    agree(before, after, X, COS, SIN, rtol=0, atol=0)
    assert targets(after).count("mul.Tensor") == targets(before).count("mul.Tensor") - 1  # what comes before the slices


def test_an_output_among_them_stays() -> None:
    def function(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Any:
        query, key = (part * cos for part in cut(x, 3))
        return key, attended(query, key)

    before = decomposed(Model(function), X, COS, SIN)
    assert targets(improved(before, "merge_slices")) == targets(before)


def test_three_neighbours_become_one() -> None:
    def function(x: Tensor, cos: Tensor, sin: Tensor, weights: Any) -> Tensor:
        a, b, c = (x[:, :, i : i + 2].transpose(1, 2) * cos for i in (0, 2, 4))
        return attended(a, b) + attended(b, c)

    before = decomposed(Model(function), X, COS, SIN)
    after = improved(before, "merge_slices")
    assert targets(after).count("mul.Tensor") < targets(before).count("mul.Tensor")
    agree(before, after, X, COS, SIN, rtol=0, atol=0)
