"""Models that decide by data, and what is wrong with programs that take the ways of their example."""

from __future__ import annotations

from collections.abc import Callable

import torch

import pipeline

ROW = torch.rand(2, 3)


class Sevens(torch.nn.Module):
    """Decides by its weights whether it has one more row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((64,), 7.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (self.weight * x.sum().isfinite() == 7).all():
            return torch.cat([x, x[:1]])
        return x


class LooksUp(torch.nn.Module):
    """Decides by data, and looks up places that data has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row, column = x.isfinite().nonzero(as_tuple=True)
        return torch.cat([x, x[:1]]) + x[row, column].sum() if (x == x).all() else x


class Halves(torch.nn.Module):
    """Decides by data, and divides places that data has; the quotient's sign is one of bools."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.where(x.flatten() >= 0)[0]
        return torch.cat([x, x[:1]]) + places.signbit().sum() + (places // 2).sum() if (x == x).all() else x


class Counts(torch.nn.Module):
    """Decides by a number of rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x[:1]]) if len(x.flatten().nonzero()) > 1 else x


BY_EXAMPLE = pipeline.CompilationSettings(decisions="example")


def by_the_example(is_wrong: Callable[[pipeline.Program], bool]) -> Callable[[], bool]:
    """Whether a program that takes the way of its example is wrong, or is none."""

    def is_flawed() -> bool:
        try:
            program = pipeline.capture(Sevens(), (ROW,), settings=BY_EXAMPLE)
        except pipeline.CaptureError:
            return True
        return is_wrong(program)

    return is_flawed


def filled(is_flawed: Callable[[], bool]) -> Callable[[], bool]:
    """The same where memory that nothing was written to is NaN, and not whatever it was before."""

    def with_nans() -> bool:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            return is_flawed()
        finally:
            torch.use_deterministic_algorithms(before)

    return with_nans


def counts_alike() -> bool:
    """Whether a program is for the number of rows of its example alone."""
    run = pipeline.default()(pipeline.capture(Counts(), (ROW,), settings=BY_EXAMPLE)).module("reference")
    try:
        run(ROW * (ROW.max() > ROW))
    except pipeline.DecisionError:
        return True
    return False


def differs(program: pipeline.Program) -> bool:
    """Whether the example itself decides otherwise."""
    try:
        pipeline.default()(program).module("reference")(ROW)
    except pipeline.DecisionError:
        return True
    return False
