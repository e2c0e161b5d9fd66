"""What the misuses share: small models, and programs that are compiled once."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

import pipeline

X = torch.ones(4, 8)
NET = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval().requires_grad_(False)
ROWS = pipeline.Input(min_shape=(2, 8), opt_shape=(4, 8), max_shape=(6, 8), name="x")


class Pair(nn.Module):
    """Two inputs, one with a default, and a result of two names."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, scale: float = 2.0) -> dict[str, torch.Tensor]:
        """[N, 8], [N, 8] -> two of [N, 8]"""
        return {"sum": a + b, "product": a * b * scale}


class Branching(nn.Module):
    """A branch on what a tensor holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4, 8] -> [4, 8]"""
        return x.relu() if x.sum() > 0 else x.sin()


class Says(nn.Module):
    """A model whose forward is the function given."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        """Whatever the function returns."""
        return self.function(x)


def failing(x: torch.Tensor) -> torch.Tensor:
    """Have an error of one's own."""
    raise KeyError("vocabulary")


@cache
def compiled() -> pipeline.Compiled:
    """Return the small network, for one shape."""
    return pipeline.compile(NET, (X,))


@cache
def ranged() -> pipeline.Compiled:
    """Return the small network, for 2 to 6 rows."""
    return pipeline.compile(NET, (ROWS,))


@cache
def pair() -> pipeline.Compiled:
    """Return the program of two inputs, which runs in PyTorch."""
    return pipeline.compile(Pair(), (X, X))
