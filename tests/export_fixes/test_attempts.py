"""The table of attempts at an export: each is tried where it says, and the one that won is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn

import pipeline
from pipeline.export_fixes import attempts
from tests.export_fixes.test_branches import a_choice
from tests.shapes.test_sizes import Calls

X: Final = torch.ones(4, 4)


class Remembers(nn.Module):
    """Makes a grid anew where the shape is not that of the last call."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: torch.Size | None = None
        self.grid = torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.shape != x.shape:
            self.grid, self.shape = torch.arange(x.shape[0])[:, None], x.shape
        return x + self.grid


def called_before() -> nn.Module:
    model = Remembers()
    model(X)
    return model


def asks_who_calls(x: Tensor) -> Tensor:
    if torch.compiler.is_exporting():
        raise AttributeError("no way of its own")
    return x * 2


def halves(x: Tensor) -> Tensor:
    return torch.nn.functional.interpolate(x[None, None], size=(int(x.shape[0] * 0.5), 4))


WINS: Final[dict[str, Callable[[], nn.Module]]] = {
    "anew": called_before,
    "called": lambda: Calls(asks_who_calls),
    "numbers": lambda: Calls(halves),
}
"""A model that an attempt exports."""


@pytest.mark.parametrize("name", WINS)
def test_the_attempt_that_won_is_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pipeline.export_fixes.exporter"):
        pipeline.capture(WINS[name]().eval(), (X,), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=9)},))
    attempt = next(each for each in (attempts.NUMBERS, *attempts.ATTEMPTS) if each.name == name)
    assert f"is exported by the attempt {name!r}: {attempt.changes}" in caplog.text


def test_attempts_that_failed_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pipeline.export_fixes.exporter"), pytest.raises(pipeline.CaptureError):
        pipeline.capture(Calls(a_choice).eval(), (X,))
    assert "the attempt 'bytecode' failed" in caplog.text
    assert "the attempt 'autograd' failed" in caplog.text
    assert "the attempt 'called'" not in caplog.text


def test_a_quotient_of_proportional_sizes_is_no_fixed_number(caplog: pytest.LogCaptureFixture) -> None:
    """Four patches are one token: rows of patches by tokens are no number that ``int`` made."""
    n = torch.export.Dim("n", min=1, max=8)

    class Tokens(nn.Module):
        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            return x.reshape(x.shape[0] // 4, 4, -1)[at].reshape(x.shape[0], -1) @ torch.ones(8, 8)

    model, at = Tokens(), torch.arange(4)
    with caplog.at_level(logging.DEBUG, "pipeline.export_fixes.exporter"):
        pipeline.capture(model, (torch.ones(16, 8), at), dynamic_shapes={"x": {0: 4 * n}, "at": {0: n}})
    assert not [each for each in caplog.records if each.name == "pipeline.export_fixes.exporter"]


def test_the_table_is_printed() -> None:
    lines = attempts.retries_as_text().splitlines()
    assert len(lines) == 1 + 1 + len(attempts.ATTEMPTS)
    for line, attempt in zip(lines[1:], (attempts.NUMBERS, *attempts.ATTEMPTS), strict=True):
        assert line.startswith(attempt.name)
        assert attempt.when in line
        assert line.endswith(attempt.changes)


def first(**others: Any) -> attempts.FirstExport:
    absent = dict.fromkeys(("has_input_ranges", "has_specialized_size", "needs_narrower_ranges"), False)
    given = {"error": RuntimeError("fails"), **absent}
    return attempts.FirstExport(model=Calls(halves), shapes=None, mode="python", **given | others)


def test_bytecode_comes_first_where_a_size_is_a_constant() -> None:
    for has_specialized_size, expected in ((True, ["bytecode first"]), (False, ["bytecode"])):
        found = first(has_specialized_size=has_specialized_size)
        assert [a.name for a in attempts.ATTEMPTS if "bytecode" in a.name and a.applies(found)] == expected
