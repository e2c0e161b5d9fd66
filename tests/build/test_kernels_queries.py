"""TensorRT-RTX's kernel for an attention with one query takes keys of other batches where it turned them round before
(an H200), so that our networks have none of several batches. Plans tell which kernels there will be."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY
from pipeline import quirks
from pipeline.quirks.plan_detectors import find_kernel_offsets, find_queries_of_other_batches
from pipeline.trt import CAPABILITIES
from tests.build.attentions import FORMS, Pooled

pytestmark = pytest.mark.skipif(
    CAPABILITIES.flavour != "tensorrt_rtx", reason="the plans of TensorRT-RTX tell what its kernels are made of"
)
LONE = b"name=_gemv_mha"


def plan(form: str, dtype: torch.dtype, batch: int, **options: object) -> bytes:
    """Of tokens that attend to each other, and then a class that attends to them."""
    torch.manual_seed(0)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    x = torch.randn(batch, 24, 64).to(dtype)
    return bytes(compile(Pooled(form).eval().to(dtype), args=(x,), **options).engines[0].plan)


def mixed(plan: bytes) -> tuple[str, ...]:
    return find_queries_of_other_batches(plan, find_kernel_offsets(plan))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_no_kernel_for_one_query_of_several_batches(form: str, dtype: torch.dtype) -> None:
    assert LONE not in plan(form, dtype, 8)


def test_nor_of_a_number_of_batches_that_varies() -> None:
    assert LONE not in plan("attention", torch.float16, 4, dynamic_shapes=({0: Dim("batch", min=1, max=8)},))


def test_one_batch_has_the_kernel() -> None:
    found = plan("attention", torch.float16, 1)
    assert LONE in found
    assert mixed(found) == ()


@quirks.without("lone-queries")
def test_what_would_be_wrong_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """As in the network of somebody's own converter."""
    with caplog.at_level(logging.WARNING):
        [kernel] = mixed(plan("attention", torch.float16, 8))
    assert kernel.startswith("_gemv_mha")
    assert f"TensorRT's kernel {kernel} may attend to the keys of other batches" in caplog.text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_results_stay(form: str, batch: int) -> None:
    model, x = Pooled(form).eval(), torch.randn(batch, 24, 64)
    run = pipeline.default(require_full_compilation=True)(model, args=(x,)).module(executor="reference")
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
