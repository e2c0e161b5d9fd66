"""The kernel for a whole attention with a mask sums weights times values in float32: one that sums in float16 rounds
after every 32 keys, also where the mask leaves none of them. The plans of TensorRT-RTX have the kernel's source."""

from __future__ import annotations

import importlib
import logging
import re
from typing import Any

import pytest
import torch
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY
from pipeline.network.kernels import kernels
from pipeline.quirks import is_avoided
from pipeline.quirks.plan_detectors import find_float16_attention_sums, find_kernel_offsets
from pipeline.trt import CAPABILITIES

pytestmark = pytest.mark.skipif(
    CAPABILITIES.flavour != "tensorrt_rtx", reason="the plans of TensorRT-RTX tell what its kernels are made of"
)
F = torch.nn.functional
Shape = tuple[int, ...]


class Attention(torch.nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=query.shape[1] != key.shape[1])


def plan(
    dtype: torch.dtype, query: Shape, key: Shape, mask: Shape, *, bools: bool = True, dynamic: bool = False
) -> bytes:
    given = *(torch.randn(shape, dtype=dtype) for shape in (query, key, key)), torch.randn(mask, dtype=dtype)
    given = (*given[:3], given[3] > 0) if bools else given
    length = Dim("length", min=1, max=64)
    shapes = ({2: length}, None, None, {2: length}) if dynamic else None
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    [engine] = compile(Attention().eval(), args=given, dynamic_shapes=shapes).engines
    return bytes(engine.plan)


def sums(made: bytes) -> list[bytes]:
    """The types of the two products' sums, of each kernel for a whole attention."""
    return re.findall(rb"fmha::\w+_hmma_(\w+)_traits", made)


CASES: dict[str, dict[str, Any]] = {
    "one row": {"query": (3, 8, 4, 64), "key": (3, 8, 256, 64), "mask": (3, 1, 1, 256)},
    "numbers": {"query": (3, 8, 4, 64), "key": (3, 8, 256, 64), "mask": (3, 1, 4, 256), "bools": False},
    "shared heads": {"query": (1, 8, 16, 64), "key": (1, 2, 256, 64), "mask": (1, 1, 16, 256)},
    "small heads": {"query": (2, 8, 16, 4), "key": (2, 8, 64, 4), "mask": (2, 1, 16, 64)},
    "wide heads": {"query": (2, 8, 16, 256), "key": (2, 8, 64, 256), "mask": (2, 1, 16, 64)},
    "any length": {"query": (2, 8, 16, 64), "key": (2, 8, 64, 64), "mask": (2, 1, 16, 64), "dynamic": True},
    "a query twice": {"query": (3, 8, 1, 64), "key": (3, 8, 256, 64), "mask": (3, 1, 1, 256)},
}


@pytest.mark.parametrize("case", CASES)
def test_halves_are_summed_in_float32(case: str) -> None:
    made = plan(torch.float16, **CASES[case])
    assert [kernel.role for kernel in kernels(made)].count("attention") == 1
    assert sums(made) == [b"fp32", b"fp32"]
    assert find_float16_attention_sums(made, find_kernel_offsets(made)) == ()


@pytest.mark.skipif(is_avoided("matmul-sums"), reason="its products of halves are spelled in float32 anyway")
def test_what_would_be_summed_in_halves_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in the network of somebody's own converter: TensorRT's choice for a product of halves."""
    attention = importlib.import_module("pipeline.impl.attention")
    plainly = lambda net, weights, value, masked: attention.matmul(net, weights, value, empty=False)  # noqa: E731
    monkeypatch.setattr(attention, "_weighted_sum", plainly)
    with caplog.at_level(logging.WARNING):
        made = plan(torch.float16, **CASES["one row"])
    assert sums(made) == [b"fp32", b"fp16"]
    [kernel] = find_float16_attention_sums(made, find_kernel_offsets(made))
    assert f"TensorRT's kernel {kernel} sums a masked attention in float16" in caplog.text


def test_without_a_mask_halves_may_be_summed_in_halves() -> None:
    query = torch.randn(3, 8, 64, 64).half()
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    [engine] = compile(Attention().eval(), args=(query, query, query, None)).engines
    made = bytes(engine.plan)
    assert len(sums(made)) == 2 and find_float16_attention_sums(made, find_kernel_offsets(made)) == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bools", [True, False])
def test_one_query_of_one_batch_builds(dtype: torch.dtype, bools: bool) -> None:
    """TensorRT-RTX 1.4 crashes if one condition selects in the mask and in the values (`masked_rows`)."""
    assert plan(dtype, (1, 8, 1, 64), (1, 8, 256, 64), (1, 1, 1, 256), bools=bools)
