"""TensorRT-RTX 1.4 copies the first batch for all where it computes a product transposed (an H100, an H200), so that
our networks keep it from that. Plans tell which kernels there will be."""

from __future__ import annotations

import logging

import pytest
import torch
from attrs import evolve

import pipeline
from benchmarks.kernels import CAPABILITY, of
from pipeline.build.wrong_kernels import of_one_batch, sources
from pipeline.impl import matmul
from pipeline.trt import CAPABILITIES
from tests.build.attentions import COMPARED, Compared, Mixed

pytestmark = pytest.mark.skipif(
    CAPABILITIES.turned_products or CAPABILITIES.flavour != "tensorrt_rtx",
    reason="this TensorRT has such kernels right",
)
WITH_THEM = evolve(CAPABILITIES, turned_products=True)


def compiled(batch: int = 2) -> pipeline.Compiled:
    torch.manual_seed(0)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return compile(Mixed().eval(), args=(torch.randn(batch, 3, 64, 64),))


def compared(form: str, dtype: torch.dtype = torch.float32, batch: int = 2) -> pipeline.Compiled:
    torch.manual_seed(0)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return compile(Compared(form).eval().to(dtype), args=tuple(x.to(dtype) for x in Compared.inputs(batch)))


def copied(result: pipeline.Compiled) -> tuple[str, ...]:
    plan = bytes(result.engines[0].plan)
    return of_one_batch(plan, sources(plan))


def test_no_kernel_copies_one_batch_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = compiled()
    assert copied(ours) == ()
    monkeypatch.setattr(matmul, "CAPABILITIES", WITH_THEM)
    theirs = compiled()
    assert copied(theirs) != ()
    assert len(of(ours)) <= len(of(theirs))


@pytest.mark.parametrize("form", COMPARED)
def test_no_product_copies_one_batch_of_a_factor_for_all(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = compared(form)
    assert copied(ours) == ()
    monkeypatch.setattr(matmul, "CAPABILITIES", WITH_THEM)
    theirs = compared(form)
    assert copied(theirs) != ()
    assert len(of(ours)) <= len(of(theirs)) + (form == "result")


def test_products_that_are_right_anyway_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [compared("second factor", torch.float16), compared("second factor", batch=1)]
    monkeypatch.setattr(matmul, "transposed", lambda net, x: x)
    theirs = [compared("second factor", torch.float16), compared("second factor", batch=1)]
    assert [str(each.networks[0]) for each in ours] == [str(each.networks[0]) for each in theirs]
    assert not any(map(copied, theirs))


def test_one_batch_is_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "CAPABILITIES", WITH_THEM)
    assert copied(compiled(batch=1)) == ()


def test_a_kernel_of_sizes_known_at_run_time_is_read_by_itself() -> None:
    """Its source has two functions, whose variables have the same names: one for the sizes tuned for, one for all."""
    head = "__global__ void __myl_ReshTran_0x1{}(__myln_float* __restrict__ __v1)\n{{\n"
    tuned = "__myln_int32 __v17 = __v16 % 32;\n__v21 = ((__myln_float*)__v1)[(0 + (__v17 * 1))];\n}\n\n"
    others = "__myln_int32 __v19 = __v17 / 2;\n__myln_int32 __v21 = __v19 / 32;\n__myln_int32 __v22 = __v21 % 2;\n"
    read = "__v24 = ((__myln_float*)__v1)[(0 + (__v22 * 128))];\n}\n"
    plan = (head.format("_com") + tuned + head.format("") + others + read + "\0").encode()
    assert len(sources(plan)) == 2 and of_one_batch(plan, sources(plan)) == ()


def test_what_would_be_wrong_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(matmul, "CAPABILITIES", WITH_THEM)
    with caplog.at_level(logging.WARNING):
        kernel, *_ = copied(compiled())
    assert f"TensorRT's kernel {kernel} copies one batch for all" in caplog.text
