"""Steps that read the last result at several places: without values computed apart, their kernels' expressions grow by
a factor in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor, nn


def routed(u: Tensor, steps: int) -> Tensor:
    """Capsules routed to others by agreement."""
    b, v = u.sum(-1), u.sum(1)
    for _ in range(steps):
        v = (b.softmax(2).unsqueeze(-1) * u).sum(1)
        squared = (v**2).sum(-1, keepdim=True)
        v = squared / (1 + squared) * v / (squared + 1e-3).sqrt()
        b = b + (u * v.unsqueeze(1)).sum(-1)
    return v


def diffused(u: Tensor, steps: int) -> Tensor:
    """The heat equation, step by step."""
    for _ in range(steps):
        u = u + 0.2 * (u.roll(1, -1) - 2 * u + u.roll(-1, -1))
    return u


def smoothed(u: Tensor, steps: int) -> Tensor:
    """Means of neighbours, fewer in each step."""
    for _ in range(steps):
        u = (u[..., 2:] + u[..., 1:-1] + u[..., :-2]) / 3
    return u


def multiplied(u: Tensor, steps: int) -> Tensor:
    """Small matrices, each computed from the last."""
    for _ in range(steps):
        u = (u + u @ u.tanh() / 4) / 2
    return u


def balanced(u: Tensor, steps: int) -> Tensor:
    """Rows and columns in turn, as Sinkhorn's steps do."""
    u = u.exp()
    for _ in range(steps):
        u = u / u.sum(-1, keepdim=True)
        u = u / u.sum(-2, keepdim=True)
    return u


def attracted(u: Tensor, steps: int) -> Tensor:
    """Bodies that attract each other."""
    for _ in range(steps):
        between = u.unsqueeze(1) - u.unsqueeze(2)
        u = u - 0.1 * (between / ((between**2).sum(-1, keepdim=True) + 1)).sum(2)
    return u


def counted(u: Tensor, steps: int) -> Tensor:
    """Whole numbers, by position."""
    n = (u * 4).long()
    for _ in range(steps):
        n = (n.flip(-1) + n.roll(1, -1) * 3) % 7
    return n.to(u.dtype)


STEPS: Final[dict[str, tuple[Callable[[Tensor, int], Tensor], tuple[int, ...], int]]] = {
    "routing": (routed, (3, 5, 3, 4), 3),
    "heat": (diffused, (3, 32), 20),
    "means": (smoothed, (3, 64), 20),
    "matrices": (multiplied, (3, 4, 4), 8),
    "rows and columns": (balanced, (3, 4, 4), 6),
    "bodies": (attracted, (3, 4, 3), 6),
    "whole numbers": (counted, (3, 4), 16),
}
"""The steps, the size of their input, and their number."""


class Stepwise(nn.Module):
    """Some of these steps."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.step, _, self.steps = STEPS[name]

    def forward(self, u: Tensor) -> Tensor:
        return self.step(u, self.steps)
