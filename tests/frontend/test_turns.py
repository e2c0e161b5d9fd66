"""Loops whose turns data chooses: each turn that there may be is traced, and data chooses whether it was."""

from __future__ import annotations

import pytest
import torch

import pipeline
from pipeline.frontend.branching import turns
from pipeline.stages import unbuilt
from tests.frontend import experts
from tests.frontend.experts import REFUSED, RIGHT, Forward, Mixture
from tests.testing.in_turn import in_turn

DIMS = ({0: torch.export.Dim("n", min=2, max=64)},)
SIZES = {"aten.where.default", "aten.index.Tensor", "aten.nonzero.default", "aten.slice.Tensor"}
"""What has a size that only data has: TensorRT-RTX runs no layer for it."""


def calls() -> list[torch.Tensor]:
    """Rows that go to many experts, and rows that all go to two."""
    torch.manual_seed(1)
    x = torch.randn(6, 8)
    return [x, x[:2] * 2, torch.randn(17, 8), x[:1].repeat(5, 1), -x[:1].repeat(3, 1), x.abs()]


@in_turn("function, device", RIGHT)
def test_turns_are_what_python_computes(function: Forward, device: str | None) -> None:
    model = Mixture(function).eval()
    compile = pipeline.default(min_block_size=1, device=device).replace("build", unbuilt)
    compiled = compile(model, (calls()[0],), dynamic_shapes=DIMS)
    assert {each.target for each in compiled.coverage.fallback} <= SIZES or function is experts.before_it_is_written
    run = compiled.module("reference")
    for x in calls():
        torch.testing.assert_close(run(x.clone()), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_is_not_known_is_refused(function: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONGEST", 20)
    with pytest.raises(pipeline.CaptureError, match=REFUSED[function]):
        pipeline.capture(Mixture(function).eval(), (calls()[0],), dynamic_shapes=DIMS)
