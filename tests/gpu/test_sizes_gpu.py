"""Arithmetic on sizes, numbers made from them, and sizes that data decides, in engines on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.shapes.test_data_dependent import CASES, ROWS
from tests.shapes.test_sizes import BOTH, ONE_ENGINE, compiled

pytestmark = pytest.mark.gpu

TOLERANCE = 5e-3
"""Products in TF32, relative to values of about 1."""


@pytest.mark.parametrize("name", ONE_ENGINE)
def test_arithmetic_on_sizes(name: str) -> None:
    function = ONE_ENGINE[name]
    module = compiled(function, [BOTH], torch.randn(4, 3)).module(executor="tensorrt")
    for rows, columns in ((1, 1), (1, 6), (5, 1), (4, 3), (9, 6), (4, 3)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(module(x.cuda()).cpu(), function(x), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_data_decides(name: str) -> None:
    function, _ = CASES[name]
    module = compiled(function, [ROWS], torch.randn(4, 4)).module(executor="tensorrt")
    for x in (torch.randn(4, 4), torch.randn(9, 4), torch.rand(9, 4) + 0.1, -torch.rand(1, 4) - 0.1, torch.randn(1, 4)):
        torch.testing.assert_close(module(x.cuda()).cpu(), function(x), rtol=TOLERANCE, atol=TOLERANCE)
