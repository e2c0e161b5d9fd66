"""index_by_masks: what is written at the positions of where a mask holds is written by the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import pipeline
from pipeline import Program
from tests.improvements.programs import improved, targets

X: Final = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))


class Indexed(nn.Module):
    """A function of [N, 4, 2]."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4, 2] -> as it says"""
        return self.function(x)


def filled(x: Tensor) -> Tensor:
    """As OneFormer opens masks that hide all."""
    mask = (x > 0).clone()
    mask[torch.where(mask.sum(-1) == mask.shape[-1])] = False
    return torch.where(mask, x, 0.5)


def by_nonzero(x: Tensor) -> Tensor:
    y = x.clone()
    y[(x[..., 0] > 0).nonzero(as_tuple=True)] = 2.0
    return y * 2


def added(x: Tensor) -> Tensor:
    y = x.clone()
    y.index_put_(torch.where(x > 0), torch.tensor(1.0), accumulate=True)
    return y


TAKEN: Final = {"filled": filled, "nonzero": by_nonzero, "added": added}


def program_of(function: Callable[[Tensor], Tensor]) -> Program:
    program: Program = pipeline.default().until("decompose")(Indexed(function).eval(), (X,))
    return program


@pytest.mark.parametrize("form", TAKEN)
def test_positions_are_not_looked_up(form: str) -> None:
    before = program_of(TAKEN[form])
    positions = {"where.default", "nonzero_numpy.default"}
    assert positions & {*targets(before)} and not positions & {*targets(improved(before, "index_by_masks"))}
    model, rows = Indexed(TAKEN[form]).eval(), {0: Dim("rows", min=2, max=6)}
    made = pipeline.default(require_full_compilation=True)(model, (X,), dynamic_shapes=(rows,))
    for x in (X, -X, torch.ones(5, 4, 2), -torch.ones(2, 4, 2)):
        torch.testing.assert_close(made.module("reference")(x), model(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[torch.where(x[..., 0] > 0)] * 2,  # data says how many
        lambda x: x.index_put((torch.where(x[0] > 0)[0],), torch.tensor(1.0)),  # one of two dims
        lambda x: x.index_put(torch.where(x[:2, :, 0] > 0), torch.tensor(1.0)),  # a mask of fewer rows
        lambda x: x.index_put(torch.where(x[..., 0] > 0)[::-1], torch.tensor(1.0)) if x.shape[0] == 4 else x + 0,
    ],
    ids=["how many", "one", "fewer rows", "turned"],
)
def test_others_stay(function: Callable[[Tensor], Tensor]) -> None:
    before = program_of(function)
    assert targets(improved(before, "index_by_masks")) == targets(before)
