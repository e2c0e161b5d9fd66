"""TensorRT-RTX 1.4 copies the first batch for all where it computes a linear layer transposed (an H100), so that our
networks keep it from that. Plans tell which kernels there will be."""

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
from tests.build.attentions import Mixed

pytestmark = pytest.mark.skipif(
    CAPABILITIES.turned_products or CAPABILITIES.flavour != "tensorrt_rtx",
    reason="this TensorRT has such kernels right",
)
WITH_THEM = evolve(CAPABILITIES, turned_products=True)


def compiled(batch: int = 2) -> pipeline.Compiled:
    torch.manual_seed(0)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return compile(Mixed().eval(), args=(torch.randn(batch, 3, 64, 64),))


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


def test_one_batch_is_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "CAPABILITIES", WITH_THEM)
    assert copied(compiled(batch=1)) == ()


def test_what_would_be_wrong_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(matmul, "CAPABILITIES", WITH_THEM)
    with caplog.at_level(logging.WARNING):
        kernel, *_ = copied(compiled())
    assert f"TensorRT's kernel {kernel} copies one batch for all" in caplog.text
