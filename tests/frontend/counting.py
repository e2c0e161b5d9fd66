"""Models that decide by how many rows data leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

Counting: TypeAlias = Callable[[Tensor], Any]


class Calls(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Counting) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """[4, 3] -> what the function returns"""
        return self.function(x)


def first(x: Tensor) -> Tensor:
    found = x[x[:, 0] > 0]
    if found.numel() == 0:
        return x.new_zeros(3)
    return found[0] * 2


def last(x: Tensor) -> Tensor:
    found = x[x[:, 0] > 0]
    return found[-1, 1] if len(found) else x.sum()


def largest(x: Tensor) -> Tensor:
    found = x[x > 0]
    top = x.new_zeros(())
    if found.shape[0] > 0:
        top = found.max()
    return top + x


def reduced(x: Tensor) -> tuple[Tensor, ...]:
    found = x[x[:, 0] > 0]
    if len(found) >= 1:
        values, positions = found.max(0)
        return found.amin(0), values, positions, found.median(), found.argmax()
    return x[0], x[0], x[0].long() * 0, x.sum(), x.sum().long() * 0


def best_two(x: Tensor) -> Tensor:
    found = x[x > 0]
    if len(found) >= 2:
        return found.topk(2)[0]
    return x[0, :2]


def asked_in_turn(x: Tensor) -> Tensor:
    found = x[x > 0]
    if len(found) > 1 and found.max() > 1 and found[1] < 2:
        x = x / found.max()
    return x


def in_one_another(x: Tensor) -> Tensor:
    found = x[x > 0]
    if x.sum() > -5:
        x = x + found[2] if len(found) > 2 else x - 1
    return x


def boxes(x: Tensor) -> tuple[Tensor, Tensor]:
    """As detectors end: what is left of boxes, in the order of their scores."""
    kept = x[:, 0] > 0
    found, scores = x[kept], x[kept, 1]
    if found.numel() == 0:
        return found, scores
    offset = found.max() + 1
    order = torch.argsort(scores + offset, descending=True)
    return found[order][:2], scores[order][:2]


def the_best(x: Tensor) -> Tensor:
    """A row at a position that data has."""
    found = x[x[:, 0] > 0]
    if len(found) > 0:
        x = x + found[found[:, 1].argmax()] * found[0, found[0].argmin()]
    return x


def none_or_all(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.new_zeros(0, 3)
    return x * 2


def some_or_all(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x[:1]
    return torch.relu(x) + x.mean()


def columns(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = torch.cat([x, x], 1)
    return x * x.shape[1]


def beside(x: Tensor) -> Tensor:
    """Two names of as many rows."""
    y = x * 2
    if x.sum() > 0:
        x, y = x[1:], y[1:]
    return x + y


def joined(x: Tensor) -> Tensor:
    parts = x[:1]
    for row in range(1, 3):
        if x[row].sum() > 0:
            parts = torch.cat([parts, x[row : row + 1]])
    return parts.cumsum(0)


FUNCTIONS: Final[tuple[Counting, ...]] = (
    *(first, last, largest, reduced, best_two, asked_in_turn, in_one_another, boxes, none_or_all, some_or_all),
    *(columns, beside, joined, the_best),
)

INPUTS: Final = (
    torch.tensor([[1.0, 2.0, -3.0], [-1.0, 0.5, 2.0], [0.25, 4.0, 1.0], [3.0, -2.0, 1.5]]),
    -torch.ones(4, 3),
    torch.tensor([[-1.0, 0.0, 0.0], [2.0, -1.0, -1.0], [0.0, -4.0, 0.0], [-1.0, -1.0, -2.0]]),
    torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
)
"""All rows, none, or some of them are found, for one function or the other."""
