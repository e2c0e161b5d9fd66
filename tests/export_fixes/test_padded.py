"""Padding of nn.TransformerEncoder: zeros where gradients are off, as in eager; values and a warning where on."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline


@pytest.mark.parametrize("gradients", [False, True])
def test_as_eager(gradients: bool, caplog: pytest.LogCaptureFixture) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8)).eval(), torch.rand(2, 5, 8)
    at_the_end, elsewhere = (
        torch.tensor([row, [False] * 5]) for row in ([False] * 3 + [True] * 2, [True] + [False] * 4)
    )
    dims = {0: Dim("n", min=1, max=4), 1: Dim("s", min=2, max=9)}
    with torch.set_grad_enabled(gradients), caplog.at_level(logging.WARNING):
        run = pipeline.default(min_block_size=1)(model, (x, None, at_the_end), dynamic_shapes=(dims, None, dims))
        for mask in (at_the_end, elsewhere, at_the_end[:1]):
            want = model(x[: len(mask)], None, mask)
            torch.testing.assert_close(run.module("reference")(x[: len(mask)], None, mask), want, rtol=1e-4, atol=1e-5)
    assert ("returns zeros for padding" in caplog.text) == gradients
