"""Branches over as many rows as data says: one that is not taken fails on none of them, and data chooses how many."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pipeline
from pipeline.stages.unbuilt import unbuilt
from tests.frontend.counting import FUNCTIONS, INPUTS, Calls, Counting, beside, some_or_all
from tests.testing.in_turn import in_turn

compile = pipeline.default().replace("build", unbuilt)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@in_turn("function, device", FUNCTIONS)
def test_they_give_what_eager_gives(function: Counting, device: str | None, dtype: torch.dtype) -> None:
    given = [x.to(dtype) for x in INPUTS]
    run = compile(pipeline.capture(Calls(function).eval(), (given[0],), device=device)).module("reference")
    for x in given:
        torch.testing.assert_close(run(x), function(x))


def test_what_fails_where_it_is_taken_fails() -> None:
    """Zeros stand in for rows only where the branch is not taken."""

    def looks_up(x: Tensor) -> Tensor:
        if x.sum() < 0:
            return x[x > 5][1]
        return x.min()

    run = compile(pipeline.capture(Calls(looks_up).eval(), INPUTS[:1])).module("reference")
    assert run(INPUTS[0]) == -3
    with pytest.raises(IndexError, match="out of range"):
        run(INPUTS[1])


def test_tensors_of_as_many_rows_have_one_size() -> None:
    program = pipeline.capture(Calls(beside).eval(), INPUTS[:1])
    assert len(program.shapes) == 1


def test_what_is_looked_up_in_a_branch_is_not_written() -> None:
    """A program would write to a copy."""

    def adds(x: Tensor) -> Tensor:
        found = x[x > 0]
        if x.sum() > 0:
            found[0].add_(1)
        return x

    with pytest.raises(pipeline.CaptureError, match="writes in place to what a branch that data decides looks up"):
        pipeline.capture(Calls(adds).eval(), INPUTS[:1])


def test_rows_are_told_apart_in_two_dims() -> None:
    def cut(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x[:2, :2]
        return x

    with pytest.raises(pipeline.CaptureError, match=r"after which x is float32\[2, 2\] or float32\[4, 3\]"):
        pipeline.capture(Calls(cut).eval(), INPUTS[:1])


def test_the_way_of_an_example_has_its_size() -> None:
    settings = pipeline.CompilationSettings(decisions="example")
    program = pipeline.capture(Calls(some_or_all).eval(), INPUTS[:1], settings=settings)
    assert not program.shapes
    with pytest.raises(pipeline.DecisionError):
        compile(program).module("reference")(INPUTS[1])
