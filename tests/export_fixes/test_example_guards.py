"""Models that take the ways of their example where data decides: each call is checked."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import pipeline
from pipeline.export_fixes.patching import VERSION
from tests.shapes.test_sizes import Calls

ONES: Final = torch.ones(4, 3)
N: Final = ({0: Dim("n", min=2, max=9)},)


def grows(x: Tensor) -> Tensor:
    if (x > 0).any():
        return torch.cat([x, x])
    return x


def counts_rows(x: Tensor) -> Tensor:
    if len(x[:, 0].nonzero()) > 2:
        return x[:1] * 2
    return x


def asks_for_a_size(x: Tensor) -> Tensor:
    return x[:1] * 2 if x[:, 0].nonzero().shape[0] > 2 else x * 3


def compares_a_mean(x: Tensor) -> Tensor:
    if x.mean().item() > 0.1:
        return x[:1]
    return x


def compares_two(x: Tensor) -> Tensor:
    if x.sum().item() > 2 * x[0].sum().item() - 1:
        return x[:1]
    return x


def turns(x: Tensor) -> Tensor:
    for _ in range(int((x[:, 0] > 0).sum())):
        x = torch.cat([x, x[:1]])
    return x


def reads_a_row(x: Tensor) -> Tensor:
    """Reads a number of a tensor that has a dim."""
    return torch.cat([x, x]) if (x[:, :1] > 0).sum(0).item() > 2 else x


def turns_over_rows(x: Tensor) -> Tensor:
    """Has as many turns as data says, and computes with the rows of each: experts of a mixture are called so."""
    for row in (x[:, 0] > 0).nonzero():
        x = x + row.float()
    return x * 2


def compares_twice(x: Tensor) -> Tensor:
    """Asks of one number whether it is at most and at least another."""
    count = len(x[:, 0].nonzero())
    x = torch.cat([x, x]) if count <= 4 else x
    return x[:1] if count >= 3 else x


def compares_a_sum(x: Tensor) -> Tensor:
    """Asks of a number that may be negative whether it is: that is what torch says of any size."""
    total = x[:, 0].long().sum().item()
    x = torch.cat([x, x]) if total >= 0 else x * 2
    return x[:1] if total <= 4 else x


def compares_with_a_size(x: Tensor) -> Tensor:
    return x[:1] * 2 if len(x[:, 0].nonzero()) >= x.shape[0] else x


def as_many(x: Tensor) -> Tensor:
    """Takes a number of rows that data has, and one way for up to three."""
    count = (x[:, 0] > 0).sum()
    x = x * 2 if count > 3 else torch.cat([x, x])
    return x[:count]


FORMS: Final[dict[Callable[[Tensor], Tensor], tuple[Tensor, Tensor]]] = {
    grows: (ONES * 0.5, -ONES),
    counts_rows: (-ONES, ONES * torch.tensor([[1.0], [0], [0], [1]])),
    asks_for_a_size: (-ONES, ONES * 0),
    reads_a_row: (ONES * torch.tensor([[1.0], [1], [0], [1]]), ONES * torch.tensor([[1.0], [0], [0], [1]])),
    turns_over_rows: (ONES * 2, ONES * torch.tensor([[1.0], [-1], [1], [1]])),
    compares_twice: (ONES * torch.tensor([[1.0], [1], [0], [1]]), ONES * torch.tensor([[1.0], [0], [0], [1]])),
    compares_a_sum: (ONES * torch.tensor([[1.0], [0], [0], [1]]), -ONES),
    compares_with_a_size: (-ONES, ONES * torch.tensor([[1.0], [1], [0], [1]])),
    compares_a_mean: (ONES * 0.2, ONES * 0.05),
    compares_two: (ONES * 3, -ONES),
    turns: (ONES * 2, torch.cat([ONES, -ONES])[2:6]),
    as_many: (ONES * 3, torch.cat([ONES, -ONES])[3:7]),
}
"""What decides as ``ONES`` do, and what decides otherwise."""
OF_FLOATS: Final = (compares_a_mean, compares_two)
OF_NUMBERS: Final = (turns, turns_over_rows, compares_twice, compares_a_sum, *([as_many] if VERSION < (2, 13) else []))
"""Their example decides for fewer rows than others have."""


def compiled(function: Callable[..., Any], *args: Tensor, dims: Any = None, **options: Any) -> pipeline.Compiled:
    compile = pipeline.default(decisions="example", min_block_size=1, **options)
    return compile(Calls(function).eval(), args, dynamic_shapes=dims)


def decisions(found: pipeline.Compiled) -> list[str]:
    return [output.target for output in found.program.outputs if output.kind == "decision"]


OLD: Final = pytest.mark.skipif(VERSION < (2, 13), reason="torch loses numbers that are no whole ones")


@pytest.mark.parametrize("dims", [None, [N[0]]], ids=["one size", "any size"])
@pytest.mark.parametrize("function", [pytest.param(f, marks=[OLD] * (f in OF_FLOATS), id=f.__name__) for f in FORMS])
def test_the_way_of_the_example_is_taken_and_checked(function: Callable[[Tensor], Tensor], dims: Any) -> None:
    found = compiled(function, ONES, dims=dims)
    run, (same, other) = found.module("reference"), FORMS[function]
    for x in (ONES, same):
        torch.testing.assert_close(run(x), function(x))
    assert function(other).shape != function(ONES).shape or not torch.equal(function(other), other)
    with pytest.raises(pipeline.DecisionError, match=r"another branch than .* at test_example_guards\.py:\d+, "):
        run(other)
    torch.testing.assert_close(run(same), function(same))
    if dims is not None and function not in OF_NUMBERS:
        torch.testing.assert_close(run(torch.ones(7, 3)), function(torch.ones(7, 3)))


def test_without_it_they_are_refused() -> None:
    with pytest.raises(pipeline.CaptureError, match='decisions="example" takes the branches of this example'):
        pipeline.default()(Calls(turns).eval(), (ONES,))


class Shrinks(nn.Module):
    """A script that decides by data."""

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 20):
            x = x * 0.5
        return x


class GrowsAndShrinks(nn.Module):
    """Decides by data in Python, beside a script that does."""

    def __init__(self) -> None:
        super().__init__()
        self.shrinks = torch.jit.script(Shrinks())

    def forward(self, x: Tensor) -> Tensor:
        return self.shrinks(grows(x))  # type: ignore[no-any-return]


def test_branches_of_a_script_are_both_there() -> None:
    """Those of Python are checked."""
    compile = pipeline.default(decisions="example", min_block_size=1)
    assert not decisions(compile(torch.jit.script(Shrinks()), (ONES,)))
    model = GrowsAndShrinks().eval()
    found = compile(model, (ONES,))
    assert len(decisions(found)) == 1
    for x in (ONES, ONES * 7, torch.cat([ONES[:1], -ONES[1:]])):
        torch.testing.assert_close(found.module("reference")(x), model(x))


def scales(x: Tensor) -> Tensor:
    if (x > 0).any():
        x = torch.cat([x, x])
    return x * math.exp(float(x.mean()))


def compares_a_float(x: Tensor) -> Tensor:
    return x[:1] if float(x.mean()) > 0.1 else x


@OLD
@pytest.mark.parametrize("function", [scales, compares_a_float], ids=lambda f: f.__name__)
def test_a_number_that_a_program_would_be_for_alone_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    said = r"test_example_guards.py:\d+, return x.* reads a float .*for its value only\n.*without float\(\)"
    with pytest.raises(pipeline.CaptureError, match=said):
        compiled(function, ONES)


SETTINGS: Final = pipeline.CompilationSettings(decisions="example")


def test_an_example_without_values_decides_nothing() -> None:
    with pytest.raises(pipeline.CaptureError, match="is unknown until it runs"):
        pipeline.capture(Calls(turns).eval(), (pipeline.Input((4, 3)),), settings=SETTINGS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has its values")
def test_a_gpu_that_is_not_there_has_no_values() -> None:
    with pytest.raises(pipeline.CaptureError, match="is unknown until it runs"):
        pipeline.capture(Calls(turns).eval(), (ONES,), device="cuda", settings=SETTINGS)


class Steps(nn.Module):
    """Counts its calls, and has another way for negative numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.cat([x, x]) * self.calls if (x > 0).all() else x


def test_a_call_that_decides_otherwise_changes_no_state() -> None:
    found = pipeline.default(decisions="example", min_block_size=1)(Steps().eval(), (ONES,))
    run = found.module("reference")
    assert torch.equal(run(ONES), torch.cat([ONES, ONES]))
    with pytest.raises(pipeline.DecisionError):
        run(-ONES)
    assert torch.equal(run(ONES), torch.cat([ONES, ONES]) * 2)


def test_nothing_else_is_changed() -> None:
    """The example is computed while it is traced: from copies, and random numbers are as they were."""

    class Draws(Steps):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            x[0] = 2
            return x + torch.rand(()) if x.sum() > 3 else x[:1]

    model, x, state = Draws().eval(), ONES.clone(), torch.get_rng_state()
    pipeline.capture(model, (x,), settings=SETTINGS)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.calls == 0
    assert torch.equal(x, ONES)


def test_what_is_kept_is_checked(tmp_path: Path) -> None:
    compiled(grows, ONES).save(tmp_path / "grows.pipeline")
    run = pipeline.load(tmp_path / "grows.pipeline").module("reference")
    assert torch.equal(run(ONES), grows(ONES))
    with pytest.raises(pipeline.DecisionError, match=r"test_example_guards\.py"):
        run(-ONES)


def test_several_decisions_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    def twice(x: Tensor) -> Tensor:
        x = torch.cat([x, x]) if x[0, 0] > 0 else x
        return torch.cat([x, x]) if x[0, 1] > 0 else x

    with caplog.at_level(logging.WARNING):
        run = compiled(twice, ONES).module("reference")
    assert not caplog.records, "torch says what the example decides"
    for column, line in ((0, "x[0, 0] > 0"), (1, "x[0, 1] > 0")):
        x = ONES.clone()
        x[0, column] = -1
        with pytest.raises(pipeline.DecisionError) as raised:
            run(x)
        assert line in str(raised.value)
