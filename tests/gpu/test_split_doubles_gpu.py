"""Angles in float64 as parts of float32, on a GPU: its kernels may round a product and a sum once, or twice."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import pipeline
from tests.improvements.test_split_doubles import EPS, MODELS, Calls

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", [*MODELS][:4])
def test_angles_are_as_exact_as_float64(name: str) -> None:
    model, of = MODELS[name]
    x = torch.rand(64, generator=torch.Generator().manual_seed(0)).cuda() - 0.25
    compile = pipeline.default(require_full_compilation=True)
    run = compile(Calls(model), (of(x * 64),), dynamic_shapes=({0: Dim("rows", max=64)},)).module("tensorrt")
    for size in (1.0, 64.0, 2.0**16, 2.0**22):
        positions = of(x * size)
        for ours, wanted in zip(tree_leaves(run(positions)), tree_leaves(model(positions)), strict=True):
            eps = torch.finfo(wanted.dtype).eps
            torch.testing.assert_close(ours.double(), wanted.double(), rtol=eps, atol=EPS)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("halves", [torch.float16, torch.bfloat16])
def test_integers_rounded_to_halves(dtype: torch.dtype, halves: torch.dtype) -> None:
    x = torch.arange(-2500, 2500, dtype=dtype, device="cuda")
    model = Calls(lambda x: (x.to(halves).float() + x, x.float().to(halves).float() * 3))
    run = pipeline.default(min_block_size=1, require_full_compilation=True)(model, (x,)).module("tensorrt")
    for ours, eager in zip(run(x), model(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0)
