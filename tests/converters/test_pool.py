"""Pooling that rounds the number of its windows up, where the size varies: no difference in even steps."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import pipeline

POOLS = {
    "average": torch.nn.AvgPool2d(2, 2, ceil_mode=True),
    "average, padded": torch.nn.AvgPool2d(4, 2, 1, ceil_mode=True),
    "maximum": torch.nn.MaxPool2d(2, 2, ceil_mode=True),
    "maximum, dim by dim": torch.nn.MaxPool2d((2, 3), (2, 1), ceil_mode=True),
}


@pytest.mark.parametrize("pool", POOLS)
def test_rounding_up_what_is_even(pool: str) -> None:
    height, compile = Dim("height", min=2, max=8), pipeline.default(require_full_compilation=True)
    compiled = compile(POOLS[pool], (torch.randn(1, 3, 8, 8),), dynamic_shapes=({2: 2 * height},))
    for rows in (4, 10, 16):
        x = torch.randn(1, 3, rows, 8)
        torch.testing.assert_close(compiled.module("reference")(x), POOLS[pool](x))


def test_rounding_up_what_may_be_odd_runs_in_pytorch() -> None:
    height = Dim("height", min=2, max=8)
    compiled = pipeline.default()(POOLS["average"], (torch.randn(1, 3, 8, 8),), dynamic_shapes=({2: height},))
    (fallback,) = compiled.coverage.fallback
    assert fallback.target == "aten.avg_pool2d.default" and "ceil_mode" in fallback.reason
    x = torch.randn(1, 3, 6, 8)  # torch 2.11 asks whether the example is even
    torch.testing.assert_close(compiled.module("reference")(x), POOLS["average"](x))
