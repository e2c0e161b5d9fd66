"""What is captured below autograd, and transforms of lengths that vary, with the module on the GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline
from tests.export_fixes import test_flex_attention, test_functorch
from tests.gpu.test_wrong_kernels_gpu import BOUND
from tests.stages import test_complex

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:return_lse is deprecated"),
]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
FULL = test_functorch.FULL


def error(compiled: pipeline.Compiled, model: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> float:
    """Of an engine, relative to the largest value of the model on a CPU in float64."""
    found = tree_leaves(compiled.module("tensorrt")(*(x.cuda() for x in args)))
    exact: Any = tree_leaves(copy.deepcopy(model).cpu().double()(*(x.double() for x in args)))
    pairs = [(a.double().cpu(), b) for a, b in zip(found, exact, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


@DTYPES
@pytest.mark.parametrize("name", test_functorch.FUNCTIONS)
def test_transforms_agree_with_eager(name: str, dtype: torch.dtype) -> None:
    model = test_functorch.Model(test_functorch.FUNCTIONS[name]).eval().to("cuda", dtype)
    compiled = FULL(model, (torch.randn(3, 4, device="cuda", dtype=dtype),), dynamic_shapes=test_functorch.DYNAMIC)
    for rows in (2, 9):
        assert error(compiled, model, (torch.randn(rows, 4, dtype=dtype),)) <= BOUND[dtype]


@DTYPES
@pytest.mark.parametrize("name", test_flex_attention.FORMS)
def test_flex_attention_agrees_with_eager(name: str, dtype: torch.dtype) -> None:
    forms, length = test_flex_attention.FORMS, test_flex_attention.LENGTH
    model = test_flex_attention.Attends(forms[name]).eval().to("cuda", dtype)
    args = tuple(x.cuda() for x in test_flex_attention.given(16, dtype))
    compiled = FULL(model, args, dynamic_shapes=({2: length}, {2: length}))
    plain = test_flex_attention.Attends(forms[name.removesuffix(", compiled")]).eval()
    plain.load_state_dict(model.state_dict())
    for rows in (2, 24):
        assert error(compiled, plain, test_flex_attention.given(rows, dtype)) <= BOUND[dtype]


@pytest.mark.parametrize("name", test_complex.VARYING)
def test_transforms_of_lengths_that_vary_agree_with_eager(name: str) -> None:
    model = test_complex.Function(test_complex.VARYING[name]).eval()
    compiled = FULL(model, (torch.randn(6, 12, device="cuda"),), dynamic_shapes=(test_complex.LENGTHS,))
    for height, width in test_complex.SIZES:
        assert error(compiled, model, (torch.randn(height, width),)) <= BOUND[torch.float32]
