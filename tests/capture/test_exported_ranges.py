"""Inputs beside an exported program ask for a part of its ranges; others are refused in words."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import pipeline


def exported(dim: object, model: torch.nn.Module | None = None) -> torch.export.ExportedProgram:
    return torch.export.export(model or torch.nn.ReLU(), (torch.randn(4, 16),), dynamic_shapes=({0: dim},))


def between(low: int, high: int) -> pipeline.Input:
    return pipeline.Input(min_shape=(low, 16), opt_shape=(low, 16), max_shape=(high, 16))


@pytest.mark.parametrize("dim", [Dim.DYNAMIC, Dim("b"), Dim("b", min=2, max=32)])
@pytest.mark.parametrize("low", [1, 2, 3])
def test_an_input_asks_for_a_part_of_a_range(dim: object, low: int) -> None:
    program = pipeline.capture(exported(dim), (between(low, 8),))
    (symbol,) = program.shapes.symbols.values()
    assert (symbol.range.min, symbol.range.opt, symbol.range.max) == (low, low, 8)
    call = pipeline.default()(program).module("reference")
    for size in (low, 8):
        x = torch.randn(size, 16)
        torch.testing.assert_close(call(x), x.relu())
    with pytest.raises(pipeline.ShapeError, match=f"compiled for {low} to 8"):
        call(torch.randn(9, 16))


@pytest.mark.parametrize(
    ("dim", "low", "high"), [(Dim("b", min=3), 2, 8), (Dim("b", max=8), 2, 9), (Dim("b", min=1, max=8), 0, 8)]
)
def test_an_input_beyond_the_range_is_refused_in_words(dim: object, low: int, high: int) -> None:
    with pytest.raises(ValueError, match=r"was exported as .*, not .*: pass the module, or export it with this dtype"):
        pipeline.capture(exported(dim), (between(low, high),))


def test_inputs_that_share_a_size_have_to_overlap() -> None:
    class Sum(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    batch, x = Dim("b"), torch.randn(4, 16)
    both = torch.export.export(Sum(), (x, x.clone()), dynamic_shapes=({0: batch}, {0: batch}))
    program = pipeline.capture(both, (between(2, 8), between(4, 16)))
    (symbol,) = program.shapes.symbols.values()
    assert (symbol.range.min, symbol.range.max) == (4, 8)
    with pytest.raises(ValueError, match="must overlap, got 2 to 4 and 8 to 16"):
        pipeline.capture(both, (between(2, 4), between(8, 16)))


@pytest.mark.parametrize(("dim", "least"), [(Dim.AUTO, 1), (Dim.DYNAMIC, 1), (Dim("b"), 1), (Dim("b", min=3), 3)])
def test_an_open_range_begins_where_torchs_module_begins(dim: object, least: int) -> None:
    program = exported(dim)
    call = pipeline.default()(program).module("reference")
    x = torch.randn(least, 16)
    torch.testing.assert_close(call(x), program.module()(x))
    if least > 1:
        with pytest.raises(pipeline.ShapeError, match=f"compiled for {least} to 16"):
            call(torch.randn(least - 1, 16))
