"""Masks that pick as many elements as the program knows: `x[mask] + v`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

import pipeline

FORMS: Final[dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "picked": lambda x, mask, v: x[mask] + v,
    "written": lambda x, mask, v: x.index_put((mask,), x[mask] * 2 + v),
    "behind": lambda x, mask, v: x.movedim(0, -1)[..., mask.reshape(-1)] * v.movedim(0, -1),
}


class Picks(nn.Module):
    """Rows that a mask picks, of which there are as many as ``v`` has."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
        """[B, S, D], [B, S], [N, D]; "behind": [S, D], [S], [N, D]"""
        return FORMS[self.form](x, mask, v)


def example(form: str, seed: int, length: int = 5, picked: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs whose mask holds at so many places of 2 x ``length``."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.randperm(2 * length, generator=generator) < picked
    x, v = torch.randn(2 * length, 3, generator=generator), torch.randn(picked, 3, generator=generator)
    return (x, mask, v) if form == "behind" else (x.reshape(2, length, 3), mask.reshape(2, length), v)


@given(form=st.sampled_from(sorted(FORMS)), length=st.integers(1, 5), share=st.floats(0.1, 1), seed=st.integers(0, 99))
def test_it_agrees_with_eager(form: str, length: int, share: float, seed: int) -> None:
    picked = max(2, int(2 * length * share))  # what has one row may be broadcast
    model = Picks(form).eval()
    made = pipeline.default(require_full_compilation=True)(model, example(form, 0, length, picked))
    inputs = example(form, seed, length, picked)
    torch.testing.assert_close(made.module("reference")(*inputs), model(*inputs))


@pytest.mark.parametrize("form", ["picked", "written"])
def test_sizes_may_vary(form: str) -> None:
    length = Dim("length", min=2, max=9)
    model = Picks(form).eval()
    made = pipeline.default(require_full_compilation=True)(
        model, example(form, 0), dynamic_shapes=({1: length}, {1: length}, None)
    )
    for each in (2, 5, 9):
        inputs = example(form, each, each)
        torch.testing.assert_close(made.module("reference")(*inputs), model(*inputs))


def test_it_is_refused_where_data_says_how_many() -> None:
    x, mask, _ = example("picked", 0)
    made = pipeline.default()(Rows().eval(), (x, mask))
    assert any("the shape of the result depends on its values" in each.reason for each in made.coverage.fallback)


class Rows(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x[mask] * 2
