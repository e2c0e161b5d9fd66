"""A model's checks of its data are taken to hold, and said; truths that decide more are refused as ever."""

from __future__ import annotations

import logging
from typing import Final

import pytest
import torch

import pipeline
from tests.export_fixes.checking import DECIDE, HOLD, Checking, Forward, asserts

X: Final = torch.linspace(-1, 2, 12).reshape(3, 4)


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("check", HOLD, ids=lambda f: f.__name__)
def test_checks_hold(check: Forward, device: str | None, caplog: pytest.LogCaptureFixture) -> None:
    model = Checking(check).eval()
    compile = pipeline.default(require_full_compilation=True, device=device)
    with caplog.at_level(logging.WARNING):
        run = compile(model, (X,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=9)},)).module("reference")
    for x in (X, X[:1], torch.cat([X, X * 3])):
        torch.testing.assert_close(run(x), model(x))
    assert "the model asserts tensor values at checking.py:" in caplog.text


@pytest.mark.parametrize("check", DECIDE, ids=lambda f: f.__name__)
def test_what_decides_more_is_refused(check: Forward) -> None:
    with pytest.raises(pipeline.CaptureError):
        pipeline.capture(Checking(check).eval(), (X,))


def test_assertions_of_an_exported_program_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """Dynamo keeps them in its graph."""
    model = Checking(asserts).eval()
    exported = torch.export.export(model, (X,), strict=True)
    run = pipeline.default(require_full_compilation=True)(exported).module("reference")
    torch.testing.assert_close(run(X), model(X))
    assert "the model asserts tensor values at checking.py:" in caplog.text


def test_what_is_known_is_no_check_of_data(caplog: pytest.LogCaptureFixture) -> None:
    def sized(m: Checking, x: torch.Tensor) -> torch.Tensor:
        if torch.tensor(x.shape[1]) != 4:
            raise ValueError("four columns are due")
        return m.linear(x)

    pipeline.capture(Checking(sized).eval(), (X,))
    assert "checks its data" not in caplog.text


@pytest.mark.parametrize("rows", [2, None])
def test_a_mask_that_picks_a_known_number_is_said(rows: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing needs the number, data has it; where the mask is the model's own, it is known."""

    def picks(m: Checking, x: torch.Tensor) -> torch.Tensor:
        picked = m.linear(x)[x[:, 0] > 0]
        return picked.view(-1 if rows is None else rows, 2, x.shape[1] // 2)

    def picks_its_own(m: Checking, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x)[torch.tensor([True, False, True], device=x.device)].view(2, 4)

    model = Checking(picks).eval()
    run = pipeline.default(min_block_size=1)(model, (X,)).module("reference")
    torch.testing.assert_close(run(X), model(X))
    assert ("a fixed number of selected elements at checking.py:" in caplog.text) == (rows is not None)
    caplog.clear()
    pipeline.capture(Checking(picks_its_own).eval(), (X,))
    assert "masked elements" not in caplog.text
