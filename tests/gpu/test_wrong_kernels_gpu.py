"""What TensorRT-RTX computes wrongly, in the forms that our networks have: engines agree with eager in float64."""

from __future__ import annotations

import pytest
import torch

import pipeline
from tests.build.attentions import Mixed
from tests.build.test_kernels_pools import Averages

pytestmark = pytest.mark.gpu
BOUND = {torch.float32: 4e-3, torch.float16: 8e-3, torch.bfloat16: 4e-2}
"""The largest error relative to the largest value; products in float32 have TF32's."""
MODELS = {
    "averages": (lambda: Averages(True, False, True), (2, 4, 9, 9)),
    "turned product": (Mixed, (3, 3, 32, 32)),
}


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_eager(name: str, dtype: torch.dtype) -> None:
    make, shape = MODELS[name]
    model = make().eval().to("cuda", dtype)
    x = torch.randn(shape).to("cuda", dtype)
    found = pipeline.default(require_full_compilation=True)(model, args=(x,)).module("tensorrt")(x)
    with torch.no_grad():
        exact = model.double()(x.double())
    for ours, want in zip(*(torch.utils._pytree.tree_leaves(value) for value in (found, exact)), strict=True):
        assert (ours.double() - want).abs().max() <= BOUND[dtype] * want.abs().max()
