"""Branches that data decides: refused in Python, with the line; both computed in TorchScript, if they are pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import pipeline
from tests.shapes.test_sizes import Calls

X: Final = torch.linspace(-1, 2, 12).reshape(3, 4)


def a_choice(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x + 1
    return x


def an_early_return(x: Tensor) -> Tensor:
    if not torch.isfinite(x).all():
        return x.clamp(-1, 1)
    return x


def an_expression(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x


def a_number(x: Tensor) -> Tensor:
    return x + 1 if x.sum().item() > 0 else x


def one_of_two(x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] > 1 and x.sum() > 0 else x


def a_while_loop(x: Tensor) -> Tensor:
    while x.sum() > 0:
        x = x - 1
    return x


def as_many_rows(x: Tensor) -> Tensor:
    return x + 1 if len(x.flatten().nonzero()) else x


def experts(x: Tensor) -> Tensor:
    for row in (x.sum(1) > 0).nonzero():
        x = x + row
    return x


def in_another_function(x: Tensor) -> Tensor:
    return a_choice(x * 2)


PYTHON: Final[dict[Callable[[Tensor], Any], str]] = {
    a_choice: "if x.sum() > 0:",
    an_early_return: "if not torch.isfinite(x).all():",
    an_expression: "return x + 1 if x.sum() > 0 else x",
    a_number: "return x + 1 if x.sum().item() > 0 else x",
    one_of_two: "return x + 1 if x.shape[0] > 1 and x.sum() > 0 else x",
    a_while_loop: "while x.sum() > 0:",
    as_many_rows: "return x + 1 if len(x.flatten().nonzero()) else x",
    experts: "for row in (x.sum(1) > 0).nonzero():",
    in_another_function: "if x.sum() > 0:",
}
"""What decides by data, and the line that does."""
WAYS_ON: Final = ("torch.where(condition, one, other)", "torch.cond", 'decisions="example"')


@pytest.mark.parametrize("function", PYTHON, ids=lambda each: each.__name__)
@pytest.mark.parametrize("device", [None, "cuda"])
def test_an_error_names_the_line_and_the_ways_on(function: Callable[[Tensor], Any], device: str | None) -> None:
    with pytest.raises(
        pipeline.CaptureError, match=r"Calls (branches on a tensor's value|reads a number from a tensor)"
    ) as raised:
        pipeline.capture(Calls(function).eval(), (X,), device=device)
    code, said = function.__code__, str(raised.value)
    first, last = code.co_firstlineno, max(line or 0 for _, _, line in code.co_lines())
    number = int(said.partition("test_branches.py:")[2].partition(",")[0])
    assert f"test_branches.py:{number}, {PYTHON[function]}" in said
    assert first < number <= last or function is in_another_function
    assert all(way in said for way in WAYS_ON)


@pytest.mark.parametrize("function", PYTHON, ids=lambda each: each.__name__)
def test_a_caught_error_is_no_branch(function: Callable[[Tensor], Any]) -> None:
    """torch.export has the program of the ``except``, whatever the data."""

    def catches(x: Tensor) -> Tensor:
        try:
            return function(x)  # type: ignore[no-any-return]
        except RuntimeError:
            return x * 2

    with pytest.raises(pipeline.CaptureError, match=r"the branch at test_branches\.py:\d+, .*catches"):
        pipeline.capture(Calls(catches).eval(), (X,))


VALUES: Final = ("x", "x + 1", "x.relu()", "y * 2", "(x - y).tanh()", "x.clone().add_(y)", "x * int(x.size(0))")
TESTS: Final = ("x.sum() > {n}", "(x > {n}).any()", "not (y < {n}).all()", "x[0, 0] > y[1, 1]", "x.max() <= y.sum()")


@st.composite
def sources(draw: st.DrawFn, depth: int = 2) -> list[str]:
    """Statements that set ``x`` and ``y``, with branches on data in them."""
    lines = list[str]()
    for _ in range(draw(st.integers(1, 2))):
        if depth and draw(st.booleans()):
            test = draw(st.sampled_from(TESTS)).format(n=draw(st.integers(-2, 2)))
            lines.append(f"if bool({test}):")
            lines += [f"    {line}" for line in draw(sources(depth=depth - 1))]
            if draw(st.booleans()):
                lines.append("else:")
                lines += [f"    {line}" for line in draw(sources(depth=depth - 1))]
        else:
            lines.append(f"{draw(st.sampled_from('xy'))} = {draw(st.sampled_from(VALUES))}")
    return lines


def script(*lines: str) -> torch.jit.ScriptFunction:
    body = "\n    ".join(lines)
    return torch.jit.CompilationUnit(f"def choose(x, y):\n    {body}\n    return x, y\n").choose


@given(sources())
def test_scripts_of_pure_branches_are_computed_whole(lines: list[str]) -> None:
    choose = script(*lines)
    compiled = pipeline.default(min_block_size=1)(choose, (X, -X))
    assert not compiled.coverage.fallback
    run = compiled.module("reference")
    for pair in ((X, -X), (-X, X), (X * 0, X), (X - 3, X * 5), (-X.abs(), X.abs())):
        for ours, theirs in zip(run(*pair), choose(*pair), strict=True):
            torch.testing.assert_close(ours, theirs)


IMPURE: Final = {
    "it writes": (["if bool(x.sum() > 0):", "    y.add_(1)"], r"aten\.add_\.Scalar has a side effect"),
    "it draws": (["if bool(x.sum() > 0):", "    y = torch.rand_like(x)"], "draws random numbers"),
    "it looks up": (["if bool(x.sum() > 0):", "    y = x[x.argmax(1)]"], "at indices that may be valid only in"),
    "it divides": (["if bool(x.sum() > 0):", "    y = x.long() // y.long() + x"], "integers that may be 0"),
    "it reads": (["if bool(x.sum() > 0):", "    y = x * x.max().item()"], "reads data"),
    "an inner one writes": (
        ["if bool(x.sum() > 0):", "    if bool(x.max() > 1):", "        y.mul_(2)"],
        r"aten\.mul_\.Scalar has a side effect",
    ),
    "other sizes": (["if bool(x.sum() > 0):", "    y = x[:2]"], r"returns float32\[2, 4\] or float32\[3, 4\]"),
    "another dtype": (["if bool(x.sum() > 0):", "    y = x.double()"], r"returns float64\[3, 4\] or float32\[3, 4\]"),
    "its choice is written": (["if bool(x.sum() > 0):", "    y = x", "y.add_(1)"], "writes in place to a tensor that"),
    "what it chose from is written": (
        ["if bool(x.sum() > 0):", "    y = x", "x.add_(1)"],
        "writes in place to a tensor that",
    ),
}


@pytest.mark.parametrize("name", IMPURE)
def test_scripts_of_other_branches_are_refused(name: str) -> None:
    lines, why = IMPURE[name]
    with pytest.raises(pipeline.CaptureError, match=why):
        pipeline.capture(script(*lines), (X, -X))


def test_numbers_that_branches_agree_on_stay_numbers() -> None:
    lines = ("n = 1", "if bool(x.sum() > 0):", "    n = 2", "    y = x", "else:", "    n = 2", "x = x * n")
    run = pipeline.default(min_block_size=1)(script(*lines), (X, -X)).module("reference")
    torch.testing.assert_close(run(-X, X), (-X * 2, X))
    with pytest.raises(pipeline.CaptureError, match="returns 2 or 1"):
        pipeline.capture(script(*lines[:4], *lines[-1:]), (X, -X))
