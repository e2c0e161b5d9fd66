"""Rows that have nothing to attend to, on a GPU: selected after the linear layer that follows, at lengths and dtypes
for which TensorRT has kernels of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from tests.improvements.programs import targets

pytestmark = pytest.mark.gpu

HEADS, SIZE = 4, 64
ERRORS = {torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""The largest, relative to the largest of the result; products of float32 are TF32."""


class Layer(nn.Module):
    """Self-attention with its linear layers, a residual and a norm, as encoders have it."""

    def __init__(self, causal: bool, added: bool) -> None:
        super().__init__()
        self.causal, self.added, width = causal, added, HEADS * SIZE
        self.heads, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """[B, L, 256], [B, L] -> [B, L, 256]"""
        batch, length, width = x.shape
        mask = counts[:, None, None, :].expand(batch, 1, length, length) > 0
        if self.causal:
            positions = torch.arange(length, device=x.device)
            mask = mask & (positions[None, :] <= positions[:, None])
        if self.added:
            mask = torch.where(mask, 0.0, float("-inf")).to(x.dtype)
        q, k, v = (y.view(batch, length, HEADS, SIZE).transpose(1, 2) for y in self.heads(x).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return self.norm(x + self.out(attended.transpose(1, 2).reshape(batch, length, width)))


def inputs(batch: int, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts padded on the left, the last of which is all padding."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(batch, length, HEADS * SIZE, generator=generator).to(dtype)
    counts = (torch.arange(length) >= length // 3).long().expand(batch, length).contiguous()
    counts[-1] = 0
    return x.cuda(), counts.cuda()


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("added", [False, True], ids=["bools", "added"])
@pytest.mark.parametrize("causal", [False, True], ids=["padding", "causal"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows_without_anything_to_attend_to(causal: bool, added: bool, dtype: torch.dtype, dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Layer(causal, added).to(dtype).cuda().eval()
    exact = Layer(causal, added).double().cuda().eval()
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    batch, length = Dim("batch", min=1, max=8), Dim("length", min=2, max=1024)
    shapes: Any = {"x": {0: batch, 1: length}, "counts": {0: batch, 1: length}} if dynamic else None
    sizes = [(1, 16), (2, 128), (3, 197), (8, 512)] if dynamic else [(2, 128)]
    given = inputs(2, 128, dtype)
    compile = pipeline.default(require_full_compilation=True)
    compiled = compile(model, args=given, dynamic_shapes=shapes)
    assert targets(compiled.program).count("where.self") == 1 + added
    run = compiled.module()
    for x, counts in (inputs(*size, dtype) for size in sizes):
        expected, actual = exact(x.double(), counts), run(x, counts).double()
        assert float((actual - expected).abs().max() / expected.abs().max()) < ERRORS[dtype], x.shape
