"""Calls at the edges of what an operator takes: eager's results, where random calls seldom go."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline
from pipeline.testing import Call, TensorSpec, check
from tests.shapes.test_sizes import Calls

aten = torch.ops.aten
F = torch.nn.functional
HALVES = TensorSpec((4,), torch.float16, ("given", (60000.0, 1234.0, -100.0, float("inf"))))
GREAT = TensorSpec((4,), values=("given", (3.4e38, -3.4028234663852886e38, 1e-30, 5.0)))
SMALL = TensorSpec((4,), values=("given", (256.0, 1e-20, 7.0, float("inf"))))
LABELS = TensorSpec((3, 4), torch.int64, ("given", (3, 0, -1, 1, 1, 2, 3, 0, -1, 2, 3, -1)))

CALLS = [
    *(Call(op.Scalar, (HALVES, 3.7)) for op in (aten.remainder, aten.fmod)),
    *(Call(op.Tensor, (GREAT, SMALL)) for op in (aten.remainder, aten.fmod)),
    *(Call(aten.multilabel_margin_loss.default, (TensorSpec((3, 4)), LABELS, r)) for r in (0, 1, 2)),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call.target))
def test_as_eager(call: Call) -> None:
    assert check(call)


@pytest.mark.parametrize("mode", ["linear", "nearest", "nearest-exact"])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_line_that_a_loop_made_is_resized(kind: Any, mode: str) -> None:
    """RTX 1.4 builds no resize of [N, C, L] that a loop over a varying L has made; writes beside it stay."""
    layer = kind(4, 6, batch_first=True)

    def resized(x: torch.Tensor) -> torch.Tensor:
        rows = layer(x)[0]
        rows[:, 0].mul_(2)
        rows.relu_()
        made = F.interpolate(rows.mT, scale_factor=2.0, mode=mode)
        made[..., -1] += 1
        return made + F.interpolate(rows.mT, rows.shape[1] * 2, mode=mode)

    dims = {0: torch.export.Dim("n", min=1, max=3), 1: torch.export.Dim("length", min=1, max=9)}
    compile = pipeline.default(require_full_compilation=True)
    run = compile(Calls(resized), (torch.rand(2, 5, 4),), dynamic_shapes=((dims,),)).module("reference")
    for x in (torch.rand(1, 7, 4), torch.rand(3, 1, 4)):
        torch.testing.assert_close(run(x), resized(x), rtol=1e-5, atol=1e-5)
