"""Outputs that TensorRT-RTX would forget to write are written on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pipeline
from tests.build.test_kernels_outputs import FUNCTIONS, Function

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_output_is_written_at_every_call(function: Callable[[Tensor], Any], dynamic: bool) -> None:
    model = Function(function).eval()
    shapes = ({0: torch.export.Dim("n", min=1, max=64)},) if dynamic and function.__name__ != "in_two_shapes" else None
    compile = pipeline.default(min_block_size=1, require_full_compilation=True)
    run = compile(model, args=(torch.randn(10, 4),), dynamic_shapes=shapes).module(executor="tensorrt")
    for seed in range(4):
        x = torch.randn(10, 4, generator=torch.Generator().manual_seed(seed))
        for actual, expected in zip(run(x.cuda()), model(x), strict=True):
            torch.testing.assert_close(actual.cpu(), expected)
