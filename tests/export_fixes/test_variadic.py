"""Models whose forward takes ``*args`` or ``**kwargs``, with sizes that vary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.stages.unbuilt import unbuilt

ROWS = pipeline.Input(min_shape=(1, 1), opt_shape=(2, 7), max_shape=(4, 16))
X = torch.rand(3, 4)
N = Dim("n", min=1, max=9)


class Takes(nn.Module):
    """Takes two inputs by name, and all others as they come."""

    def forward(self, x: torch.Tensor, twice: bool = False, **others: Any) -> torch.Tensor:
        result = x * 2 if twice else x + 1
        more: torch.Tensor | None = others.get("more")
        return result if more is None else result * more


GIVEN: dict[str, tuple[dict[str, Any], Any]] = {
    "none of them": ({"x": ROWS, "twice": True}, None),
    "a number": ({"x": ROWS, "other": 3}, None),
    "a number first": ({"other": True, "x": ROWS}, None),
    "None": ({"x": ROWS, "twice": True, "more": None}, None),
    "a tensor": ({"x": ROWS, "more": ROWS}, None),
    "a tensor first": ({"more": ROWS, "x": ROWS, "other": 3}, None),
    "dims by their names": ({"x": X, "more": X}, {"x": {0: N}, "more": {0: N}}),
    "dims by the name of all": ({"more": X, "x": X}, {"x": {0: N}, "others": {"more": {0: N}}}),
    "a dict": ({"x": ROWS, "more": ROWS, "sizes": {"more": 3, "x": 2}}, None),
}


@pytest.mark.parametrize("name", GIVEN)
def test_keywords_are_taken_with_sizes_that_vary(name: str) -> None:
    given, dims = GIVEN[name]
    compiled = pipeline.default().replace("build", unbuilt)(Takes().eval(), (), given, dims)
    module = compiled.module("reference")
    for rows in (1, 2, 4):
        tensors = {k: torch.rand(rows, 4) for k, v in given.items() if isinstance(v, torch.Tensor | pipeline.Input)}
        torch.testing.assert_close(module(**{**given, **tensors}), Takes()(**{**given, **tensors}))
    assert {(r.min, r.max) for r in compiled.program.shapes.values()} <= {(1, 4), (1, 16), (1, 9)}
    assert compiled.program.shapes


def test_a_keyword_that_is_not_given_has_no_dims() -> None:
    with pytest.raises(ValueError, match="other"):
        pipeline.capture(Takes().eval(), (), {"x": X}, {"x": {0: N}, "other": {0: N}})


class Sums(nn.Module):
    """Adds up all that it is given, the first one twice."""

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return sum(others, start=x * 2)


POSITIONS: dict[str, tuple[int, Any]] = {
    "one by one": (3, ({0: N}, {0: N}, {0: N})),
    "in one": (3, ({0: N}, ({0: N}, {0: N}))),
    "by name": (3, {"x": {0: N}, "others": ({0: N}, {0: N})}),
    "one other": (2, ({0: N}, {0: N})),
    "one other, by its dims": (2, ({0: N}, (N, None))),
    "one other, in one": (2, ({0: N}, ({0: N},))),
    "no other": (1, ({0: N},)),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_are_taken_with_sizes_that_vary(name: str) -> None:
    count, dims = POSITIONS[name]
    compiled = pipeline.default().replace("build", unbuilt)(Sums().eval(), (X,) * count, None, dims)
    module = compiled.module("reference")
    for rows in (1, 9):
        tensors = [torch.rand(rows, 4) for _ in range(count)]
        torch.testing.assert_close(module(*tensors), Sums()(*tensors))


def test_a_number_as_a_position() -> None:
    class Twice(nn.Module):
        """A number alone, whose entry is no dict."""

        def forward(self, *args: Any) -> torch.Tensor:
            return torch.ones(3) * args[0]

    for dims in ((torch.export.Dim.DYNAMIC,), ((torch.export.Dim.DYNAMIC,),)):
        assert pipeline.capture(Twice().eval(), (5,), None, dims).shapes


def test_all_as_positions() -> None:
    class All(nn.Module):
        """As wrappers are written."""

        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            return torch.cat(args, -1)

    program = pipeline.capture(All().eval(), (X, X.clone()), None, ({0: N}, {0: N}))
    assert [(r.min, r.max) for r in program.shapes.values()] == [(1, 9)]
    for wrong in (({0: N},), ({0: N}, {0: N}, {0: N})):
        with pytest.raises(ValueError, match=rf"{len(wrong)} entries, expected 2, for args\[0\], args\[1\]"):
            pipeline.capture(All().eval(), (X, X.clone()), None, wrong)
