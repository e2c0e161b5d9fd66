"""update_by_masks: what a mask picks is computed for all elements, and the mask chooses."""

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


class Updated(nn.Module):
    """A function of [N, 4, 2], with a weight of [1, 2]."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.tensor([[2.0, -3.0]]))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4, 2] -> as it says"""
        return self.function(x, self.weight)


def embedded(x: Tensor, weight: Tensor) -> Tensor:
    """As Segment Anything embeds points by their labels."""
    labels, y = x[..., 0].round(), x * 1.0
    y[labels == -1] = 0.0
    y[labels == -1] += weight
    y[labels == 0] += weight[0]
    return y


def of_another(x: Tensor, weight: Tensor) -> Tensor:
    """As a hue is computed, by where the largest channel is."""
    top, y = x.amax(-1), torch.zeros_like(x[..., 0])
    y[x[..., 1] == top] = 4.0 + ((x[..., 0] - x[..., 1]) / (top - x.amin(-1) + 1e-3))[x[..., 1] == top]
    y[top < 0] = (y[top < 0] % 6).exp() * weight.sum()
    return y


def cast(x: Tensor, weight: Tensor) -> Tensor:
    y = x.clone()
    mask = x > 0
    y[mask] = (x[mask] * 2).long().float().sqrt()
    return y


TAKEN: Final = (embedded, of_another, cast)


def program_of(function: Callable[[Tensor, Tensor], Tensor]) -> Program:
    program: Program = pipeline.default().until("decompose")(Updated(function).eval(), (X,))
    return program


@pytest.mark.parametrize("function", TAKEN, ids=lambda each: each.__name__)
def test_none_are_picked(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert "index.Tensor" in targets(program_of(function))
    assert "index.Tensor" not in targets(improved(program_of(function), "update_by_masks"))
    model, rows = Updated(function).eval(), {0: Dim("rows", min=2, max=6)}
    made = pipeline.default(require_full_compilation=True)(model, (X,), dynamic_shapes=(rows,))
    for x in (X, -X, torch.ones(5, 4, 2), -torch.ones(2, 4, 2), X * 0):
        torch.testing.assert_close(made.module("reference")(x), model(x))


def other_mask(x: Tensor, weight: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0] = -y[x >= 0][: (x > 0).sum()] if x.shape[0] < 3 else y[(x > 0).flip(0).flip(0) & (x > 0)]
    return y


def added(x: Tensor, weight: Tensor) -> Tensor:
    return x.index_put((x > 0,), x[x > 0], accumulate=True)


def in_order(x: Tensor, weight: Tensor) -> Tensor:
    """Each element that is picked is another's."""
    y = x.clone()
    y[x > 0] = y[x > 0].cumsum(0)
    return y


def by_place(x: Tensor, weight: Tensor) -> Tensor:
    y = x.clone()
    mask = x[..., 0] > 0
    y[mask] = y[mask] + y[mask][:1]
    return y


def divided(x: Tensor, weight: Tensor) -> Tensor:
    """By whole numbers that may be 0 elsewhere."""
    y, mask = x.long(), x.long() != 0
    y[mask] = 7 // y[mask]
    return y


@pytest.mark.parametrize("function", [other_mask, added, in_order, by_place, divided], ids=lambda each: each.__name__)
def test_others_stay(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    before = program_of(function)
    assert targets(improved(before, "update_by_masks")) == targets(before)
    made = pipeline.default()(Updated(function).eval(), (X,))
    torch.testing.assert_close(made.module("reference")(X), function(X, torch.tensor([[2.0, -3.0]])))
