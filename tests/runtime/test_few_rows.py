"""What Triton's kernels for a few rows do not take runs in PyTorch; attention takes the condition of a mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

import pipeline
from pipeline.aten.own_ops import OPEN_MASK
from pipeline.runtime import few_rows, torch_segment
from pipeline.runtime.grouped_attention import attention_in_graphs


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "dtype"),
    [
        (17, 4096, 4096, torch.half),
        (8, 1024, 1024, torch.half),
        (1, 4096, 4096, torch.float),
        (1, 4100, 512, torch.half),
    ],
)
def test_other_matmuls_are_of_pytorch(rows: int, terms: int, columns: int, dtype: torch.dtype) -> None:
    x, weight = torch.ones(rows, terms, dtype=dtype), torch.ones(columns, terms, dtype=dtype)
    assert torch.equal(few_rows.linear(x, weight), linear(x, weight))
    transposed = torch.ones(terms, columns, dtype=dtype).T
    assert torch.equal(few_rows.linear(x, transposed), linear(x, weight))


@pytest.mark.parametrize("shape", [(1, 2, 3, 64), (1, 2, 1, 80), (2, 3, 1, 64)])
def test_other_attention_is_of_pytorch(shape: tuple[int, ...]) -> None:
    query, cache = torch.randn(shape).half(), torch.randn(shape[0], 2, 9, shape[-1]).half()
    if shape[1] % 2:
        assert not few_rows.supports_attention(query, cache, cache)
        return
    found = attention_in_graphs(query, cache, cache)
    assert torch.equal(found, scaled_dot_product_attention(query, cache, cache))


class Attention(torch.nn.Module):
    def __init__(self, high: float, low: float) -> None:
        super().__init__()
        self.high, self.low = high, low

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        high, low = (torch.full((), number, dtype=q.dtype) for number in (self.high, self.low))
        mask = OPEN_MASK(torch.where(seen, high, low))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)


@pytest.mark.parametrize(("high", "low", "found"), [(0, torch.finfo(torch.float32).min, 1), (1, -1e38, 0), (0, -9, 0)])
def test_attention_takes_the_condition_of_a_mask(
    high: float, low: float, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Attention(high, low), torch.randn(2, 3, 5, 16)
    args = (x, x.flip(0), x.flip(1), torch.eye(5).roll(1, 0) + torch.eye(5) > 0)
    compiled = pipeline.default(torch_executed_ops={"aten.scaled_dot_product_attention", "aten.where"})(model, args)
    every: list[int] = []
    own = torch_segment.replaceable_masks
    monkeypatch.setattr(
        torch_segment, "replaceable_masks", lambda *given: every.append(len(rows := [*own(*given)])) or rows
    )
    torch.testing.assert_close(compiled.module("reference")(*args), model(*args))
    assert every == [found]
