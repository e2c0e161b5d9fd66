"""Models that decide by their data, with the module on the GPU: engines take the branch that eager takes.

Weights and inputs have few bits, so that what is decided by is exact, also in TF32.
"""

from __future__ import annotations

from typing import Final

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline
from tests.frontend import deciding
from tests.frontend.deciding import RIGHT, Deciding, Forward
from tests.frontend.test_deciding import DIMS
from tests.gpu.test_control_flow_gpu import agrees, inputs
from tests.gpu.test_wrong_kernels_gpu import DTYPES

pytestmark = pytest.mark.gpu
FAR_FROM_A_CHOICE: Final = (deciding.one_way, deciding.returns, deciding.writes_to_its_own, deciding.collects)
"""What decides by nothing that halves round."""


def agree(function: Forward, dtype: torch.dtype) -> None:
    model = Deciding(function).eval()
    with torch.no_grad():
        for parameter in (*model.linear.parameters(), *model.other.parameters()):
            parameter.copy_(parameter.mul(2).round().div(2))
    model = model.to("cuda", dtype)
    given = [part for x in inputs(6, dtype) for part in (x, x[:1], x[2:] / 4)]
    run = pipeline.default(min_block_size=1)(model, (given[0],), dynamic_shapes=DIMS).module("tensorrt")
    for x in given:
        ours, theirs = ([t for t in tree_leaves(f(x.clone())) if isinstance(t, torch.Tensor)] for f in (run, model))
        agrees(ours, theirs, dtype)


@pytest.mark.parametrize("function", RIGHT, ids=lambda f: f.__name__)
def test_branches(function: Forward) -> None:
    agree(function, torch.float32)


@DTYPES
@pytest.mark.parametrize("function", FAR_FROM_A_CHOICE, ids=lambda f: f.__name__)
def test_branches_in_halves(function: Forward, dtype: torch.dtype) -> None:
    agree(function, dtype)
