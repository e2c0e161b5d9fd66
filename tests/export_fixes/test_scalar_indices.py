"""Writes where tensors of rank 0 say are eager's, whichever way they count, and in one engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import pipeline

Write = Callable[[Tensor, Tensor, Tensor, Tensor], None]


class Cached(nn.Module):
    """Writes to a cache [2, 4, 3] what it is given, and returns it."""

    def __init__(self, write: Write, dtype: torch.dtype) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("cache", torch.zeros(2, 4, 3, dtype=dtype))

    def forward(self, x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        self.write(self.cache, x, i, j)
        return self.cache * 2


def row(cache: Tensor, x: Tensor, i: Tensor, j: Tensor) -> None:
    cache[:, i] = x


def element(cache: Tensor, x: Tensor, i: Tensor, j: Tensor) -> None:
    cache[0, i, j] = 2.0


def between(cache: Tensor, x: Tensor, i: Tensor, j: Tensor) -> None:
    cache[i % 2, None, ..., j] = x[:1]


def added(cache: Tensor, x: Tensor, i: Tensor, j: Tensor) -> None:
    cache[:, i] += x
    cache[..., j] *= 3


def through_a_view(cache: Tensor, x: Tensor, i: Tensor, j: Tensor) -> None:
    cache.transpose(0, 1)[i] = x
    cache[1:, j, :-1] = cache[:1, i, 1:]


@pytest.mark.parametrize(
    ("write", "dtype"),
    [
        *((row, dtype) for dtype in (torch.float16, torch.int64)),
        *((write, torch.float32) for write in (element, between, added, through_a_view)),
    ],
)
def test_as_eager(write: Write, dtype: torch.dtype) -> None:
    x = torch.tensor([3.0, -1.0, 2.0]).to(dtype)
    compile = pipeline.default(require_full_compilation=True)
    run = compile(Cached(write, dtype).eval(), (x, torch.tensor(1), torch.tensor(2))).module("reference")
    model = Cached(write, dtype)
    for i, j in ((1, 2), (3, 0), (-2, -1)):
        given = x, torch.tensor(i), torch.tensor(j)
        torch.testing.assert_close(run(*given), model(*given))


@pytest.mark.parametrize("write", [row, element, added, through_a_view])
def test_into_a_cache_of_any_size(write: Write) -> None:
    class Given(nn.Module):
        def forward(self, cache: Tensor, i: Tensor, j: Tensor) -> Tensor:
            cache = cache.clone()
            write(cache, cache[0, 0] + 1, i, j)
            return cache * 2

    dims = {0: Dim("n", min=2, max=5), 1: Dim("m", min=4, max=9)}
    given = torch.rand(2, 4, 3), torch.tensor(1), torch.tensor(2)
    run = pipeline.default(require_full_compilation=True)(Given(), given, dynamic_shapes=(dims, None, None))
    for shape, i, j in (((2, 9, 3), 2, 1), ((5, 4, 3), -1, -2)):
        args = torch.rand(shape), torch.tensor(i), torch.tensor(j)
        torch.testing.assert_close(run.module("reference")(*args), Given()(*args))


def test_on_a_gpu() -> None:
    given = torch.rand(3), torch.tensor(1), torch.tensor(2)
    assert not pipeline.default(device="cuda", min_block_size=1)(
        Cached(added, torch.float32).eval(), given
    ).coverage.fallback
