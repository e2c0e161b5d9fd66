"""What a CUDA graph captures of a call, run on a CPU without a graph: buffers and inputs are as eager leaves them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import pipeline
from pipeline.runtime.call_plan import ON_CPU
from pipeline.runtime.cuda_graphs import CapturedCall
from tests.capture.test_mutation import OLD, Delayed


def called(module: Any, x: torch.Tensor) -> object:
    """The output of a call by what a graph would capture and what comes after its launch."""
    leaves, plan = module._find_plan((x,), {})
    executor, call = module._workers.take(), CapturedCall.__new__(CapturedCall)
    call.plan, call.reuse, call.layout, call._executor = plan, False, executor.layout, executor
    call._inside, call._fed, call.written = False, {}, []
    with torch.no_grad():
        _, results, _ = call._record(leaves, ON_CPU)
        call._write_mutated_inputs(leaves)
    module._workers.give(executor)
    return results[0]


@pytest.mark.parametrize("form", OLD)
def test_old_values_are_written_before_they_change(form: str) -> None:
    eager = Delayed(form).eval()
    module = pipeline.default()(copy.deepcopy(eager), args=(torch.zeros(6, 6),)).module("reference")
    for step in range(4):
        x = torch.arange(36.0).reshape(6, 6) + step
        ours, theirs = x.clone(), x.clone()
        assert torch.equal(called(module, ours), eager(theirs)) and torch.equal(ours, theirs)
        assert all(torch.equal(value, eager.get_buffer(name)) for name, value in module.named_buffers())
