"""Attention of grouped heads, spelled for the kernels that torch has, is torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline
from pipeline.aten.interpreter import Interpreter
from pipeline.runtime.torch_segment import SDPA, attention, torch_segment

SHAPES = [(1, 1, 5), (2, 1, 5), (2, 3, 5), (2, 0, 5)]
MASKS = {
    "of keys": lambda b, h, q, k: (q, k),
    "of rows": lambda b, h, q, k: (b, 1, q, k),
    "of heads": lambda b, h, q, k: (b, h, q, k),
    "of heads, once": lambda b, h, q, k: (h, q, k),
}


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("batch", "queries", "keys"), SHAPES)
def test_groups_with_a_mask(batch: int, queries: int, keys: int, mask: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(batch, 6, queries, 8), torch.randn(batch, 2, keys, 8)
    value, weights = torch.randn(batch, 2, keys, 4), torch.randn(MASKS[mask](batch, 6, queries, keys))
    given = weights > -1 if dtype is torch.bool else weights
    if dtype is torch.bool:
        given[..., 0] = True
    for scale in (None, 0.5):
        how = {"scale": scale, "enable_gqa": True}
        found = attention(query, key, value, given, **how), attention(query, key, value, attn_mask=given, **how)
        for each in found:
            torch.testing.assert_close(each, SDPA(query, key, value, given, **how))


def test_other_attentions_are_called_as_they_are() -> None:
    query, key, mask = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 3, 8), torch.randn(3, 3)
    for args, how in (
        ((query, key, key), {"is_causal": True}),
        ((query, key, key, mask), {"enable_gqa": True}),
        ((query, key[:, :2], key[:, :2]), {"enable_gqa": True}),
    ):
        assert torch.equal(attention(*args, **how), SDPA(*args, **how))


class Attention(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def test_segments_on_a_gpu_call_it() -> None:
    compile = pipeline.default(torch_executed_ops={str(SDPA)}, min_block_size=1).until("partition")
    partitioned = compile(Attention(), args=(torch.randn(1, 2, 3, 4),))
    (segment,) = partitioned.segments
    called = {}
    for device in ("cuda", "cpu"):
        run: Any = torch_segment(partitioned.program, segment, lambda name: None, torch.device(device))
        (steps,) = [c.cell_contents for c in run.__closure__ if isinstance(c.cell_contents, Interpreter)]
        called[device] = {step.call for step in steps.steps} & {attention, SDPA}
    assert called == {"cuda": {attention}, "cpu": {SDPA}}
