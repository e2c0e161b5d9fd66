"""Sums of few elements beside reductions, with the module on the GPU: engines agree with eager in float64."""

from __future__ import annotations

import pytest
import torch

import pipeline
from tests.build.written_in import BATCH, FORMS, Written, example
from tests.gpu.test_wrong_kernels_gpu import BOUND, DTYPES

pytestmark = pytest.mark.gpu
FULL = pipeline.default(require_full_compilation=True, min_block_size=1)


@DTYPES
@pytest.mark.parametrize("sizes", ["one batch", "any batch"])
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_eager(form: str, sizes: str, dtype: torch.dtype) -> None:
    model, x = Written(form).eval().cuda(), example(form).to("cuda", dtype)
    dims = BATCH if sizes == "any batch" else None
    exact = model(x.double())
    if not exact.is_floating_point() and dtype is not torch.float32:
        pytest.skip("a choice among numbers that are rounded")
    found = FULL(model, args=(x,), dynamic_shapes=dims).module("tensorrt")(x)
    if not exact.is_floating_point():
        assert torch.equal(found, exact)
    else:
        assert float((found.double() - exact).abs().max() / exact.abs().max()) <= BOUND[dtype]
