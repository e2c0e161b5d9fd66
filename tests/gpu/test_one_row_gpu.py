"""One row by weights that an engine reads where they lie, on a GPU: as exact as eager."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from pipeline.trt import CAPABILITIES
from tests.stages.one_row import Act, Layer, compile_layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CAPABILITIES.fast_sums, reason="this TensorRT has products that are as fast"),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("act", [functional.silu, torch.relu, functional.gelu], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("width", "feed"), [(128, 100), (128, 256), (1024, 4096), (2048, 5632)])
def test_a_layer_is_as_exact_as_eager(width: int, feed: int, act: Act, dtype: torch.dtype, bias: bool) -> None:
    model = Layer(width, feed, act=act, bias=bias)
    made = compile_layers(model, width, dtype, "cuda")
    module, exact = made.module("tensorrt"), copy.deepcopy(model).double()
    for rows in (1, 4):
        for seed in range(3):
            x = torch.randn(1, rows, width, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)
            true = exact(x.double())
            ours, eagers = (float((f(x).double() - true).abs().max() / true.abs().max()) for f in (module, model))
            assert ours <= 1.5 * eagers + torch.finfo(dtype).eps
