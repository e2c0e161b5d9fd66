"""Kernels of TensorRT-RTX that reduce read registers of other threads where they broadcast what they keep (an H100, an
H200), so that our networks broadcast it before. Plans tell which kernels there will be."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import pipeline
from benchmarks.kernels import CAPABILITY
from pipeline.impl import base
from pipeline.quirks.plan_detectors import find_kernel_offsets, find_misplaced_registers
from pipeline.trt import CAPABILITIES
from tests.build.kept import FORMS, RIGHT, Broadcast, dynamic, inputs

pytestmark = pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="plans of another TensorRT tell nothing")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def compiled(form: str, dtype: torch.dtype, shapes: Any = None) -> pipeline.Compiled:
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return compile(Broadcast(form).eval(), args=inputs(form, dtype), dynamic_shapes=shapes)


def found(result: pipeline.Compiled) -> tuple[str, ...]:
    plan = bytes(result.engines[0].plan)
    return find_misplaced_registers(plan, find_kernel_offsets(plan))


def as_it_is(net: object, x: Any, shape: object) -> Any:
    return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_nothing_kept_is_broadcast(form: str, dtype: torch.dtype) -> None:
    assert found(compiled(form, dtype)) == ()
    if (shapes := dynamic(form)) is not None:
        assert found(compiled(form, dtype, shapes)) == ()


OF_ONE = {"log_softmax of one", "norm and product of one", "vector and product of one", "largest"}
"""They reduce dims of one element, which no kernel of ours does."""


@pytest.mark.parametrize("form", sorted(FORMS.keys() - OF_ONE))
def test_the_plan_tells_what_goes_wrong_without_it(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 not every form has such a kernel, and in float16 not every one: each has one in either."""
    monkeypatch.setattr(base, "expand", as_it_is)
    assert any(found(compiled(form, dtype)) for dtype in (torch.float32, torch.float16))


def test_users_are_warned_of_such_kernels(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(base, "expand", as_it_is)
    with caplog.at_level(logging.WARNING):
        compiled("softmax", torch.float32)
    assert "reads what its threads keep of other elements" in caplog.text


@pytest.mark.parametrize("form", RIGHT)
def test_others_stay_as_they_are(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = compiled(form, torch.float32)
    assert found(ours) == ()
    monkeypatch.setattr(base, "expand", as_it_is)
    assert str(compiled(form, torch.float32).networks[0]) == str(ours.networks[0])
