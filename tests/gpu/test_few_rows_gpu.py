"""Triton's kernels for a few rows on a GPU: as exact as eager, and reading what a mask shows."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from pipeline.runtime import few_rows
from pipeline.runtime.grouped_attention import attention_in_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not few_rows.is_triton_installed(), reason="needs Triton")]
HALVES = [torch.float16, torch.bfloat16]


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(1, 1024, 515), (1, 4112, 129), (2, 4096, 4097), (8, 1040, 16400), (16, 4096, 4096)]
)
def test_matmuls_of_few_rows_err_as_eager(rows: int, terms: int, columns: int, bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 1, terms, device="cuda").to(dtype)
    weight = (torch.randn(columns, terms, device="cuda") * terms**-0.5).to(dtype)
    added = torch.randn(columns, device="cuda").to(dtype) if bias else None
    exact = linear(x.double(), weight.double(), None if added is None else added.double())
    with patch.object(few_rows, "torch_linear", side_effect=AssertionError("PyTorch's kernel ran")):
        found = few_rows.linear(x, weight, added)
    assert found.shape == exact.shape and found.dtype == dtype
    assert error(found, exact) <= 1.1 * error(linear(x, weight, added), exact)


def masks(kind: str, batch: int, length: int, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask that hides each row's last keys, and of the second row all but one."""
    if kind == "none":
        return None
    ends = torch.tensor([max(1, length - 37), 1, length])[:batch]
    seen = (torch.arange(length) < ends[:, None])[:, None, None].cuda()
    if kind == "one for all":
        return seen[:1]
    return seen if kind == "bool" else torch.zeros((), device="cuda", dtype=dtype).where(seen, -torch.inf).to(dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["none", "bool", "one for all", "added"])
@pytest.mark.parametrize(
    ("batch", "heads", "groups", "length", "width"), [(1, 8, 2, 200, 128), (3, 4, 4, 77, 64), (2, 6, 1, 640, 256)]
)
def test_attention_of_one_query_errs_as_eager(
    batch: int, heads: int, groups: int, length: int, width: int, kind: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(length)
    query = torch.randn(batch, 1, heads, width, device="cuda").to(dtype).transpose(1, 2)
    cache = torch.randn(2, batch, groups, length, width, device="cuda").to(dtype)
    mask = masks(kind, batch, length, dtype)
    wide = [each.repeat_interleave(heads // groups, 1) for each in cache]
    half, exact = (
        scaled_dot_product_attention(
            query.to(to),
            *(each.to(to) for each in wide),
            mask if mask is None or mask.dtype == torch.bool else mask.to(to),
        )
        for to in (dtype, torch.float64)
    )
    with patch("pipeline.runtime.grouped_attention.attention", side_effect=AssertionError("PyTorch's kernel ran")):
        found = attention_in_graphs(query, cache[0], cache[1], mask, enable_gqa=True)
    assert found.shape == exact.shape and found.dtype == dtype
    assert error(found, exact) <= 1.5 * error(half, exact) + 1e-5


def test_a_query_that_sees_nothing_is_zero() -> None:
    query, cache = (torch.ones(1, 2, n, 64, device="cuda", dtype=torch.half) for n in (1, 100))
    seen = torch.zeros(1, 1, 1, 100, dtype=torch.bool, device="cuda")
    assert not few_rows.attention(query, cache, cache, seen, 1.0).any()
