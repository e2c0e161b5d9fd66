"""Control flow in engines, with the module on the GPU: engines agree with eager in float64, whatever they choose.

Weights and inputs have few bits, so that what is chosen by is exact in every dtype.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import pipeline
from tests.gpu.test_wrong_kernels_gpu import BOUND, DTYPES
from tests.stages.flows import ANY_SIZE, DIMS, ONE_SIZE, Flow

pytestmark = pytest.mark.gpu
FLOWS: Final = {**ANY_SIZE, **ONE_SIZE}
FULL: Final = pipeline.default(require_full_compilation=True, min_block_size=1)


def model(name: str, dtype: torch.dtype) -> Flow:
    made = Flow(FLOWS[name]).eval()
    with torch.no_grad():
        for parameter in (p for layer in (made.first, made.inner, made.other) for p in layer.parameters()):
            parameter.copy_(parameter.mul(2).round().div(2))
    return made.to("cuda", dtype)


def inputs(rows: int, dtype: torch.dtype) -> list[Tensor]:
    """Some above 0, some below."""
    torch.manual_seed(0)
    x = torch.randint(-8, 16, (rows, 4)).to("cuda", dtype) / 8
    return [x, x + 3, x - 3]


def agrees(found: Any, expected: Any, dtype: torch.dtype) -> None:
    """A program's outputs are all where its inputs are; eager may have some on the CPU."""
    for ours, wanted in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        exact = not ours.is_floating_point() or not wanted.numel()
        bound = 0.0 if exact else BOUND[dtype] * float(wanted.nan_to_num(0, 0, 0).abs().max())
        torch.testing.assert_close(ours.to(wanted), wanted, rtol=0, atol=bound, equal_nan=True)


@DTYPES
@pytest.mark.parametrize("name", FLOWS)
def test_agrees_with_eager(name: str, dtype: torch.dtype) -> None:
    made, given = model(name, dtype), inputs(6, dtype)
    run = FULL(made, args=(given[0],)).module("tensorrt")
    found = [run(x) for x in given]
    made.double()
    for ours, x in zip(found, given, strict=True):
        agrees(ours, made(x.double()), dtype)


@DTYPES
@pytest.mark.parametrize("name", ANY_SIZE)
def test_sizes_that_vary(name: str, dtype: torch.dtype) -> None:
    made = model(name, dtype)
    run = FULL(made, args=(inputs(6, dtype)[0],), dynamic_shapes=DIMS).module("tensorrt")
    given = [x for rows in (6, 1, 9) for x in inputs(rows, dtype)]
    found = [run(x) for x in given]
    made.double()
    for ours, x in zip(found, given, strict=True):
        agrees(ours, made(x.double()), dtype)
