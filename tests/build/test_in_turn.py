"""Networks for GPU tests of sizes in turn: they agree on the reference executor, and have the kernels in question."""

from __future__ import annotations

import pytest
import torch

import pipeline
from benchmarks.kernels import CAPABILITY, of
from pipeline.trt import CAPABILITIES
from tests.build.in_turn import MODELS, calls

KERNELS = {"the first of equals": "Topk", "a bias of each layer": "SeleMaxr"}


@pytest.mark.parametrize("name", MODELS)
def test_they_agree_with_eager_in_turn(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    compiled = compile(model, args=next(calls(name)), dynamic_shapes=MODELS[name].shapes)
    run = compiled.module(executor="reference")
    for inputs in calls(name):
        with torch.no_grad():
            torch.testing.assert_close(run(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    if (CAPABILITIES.flavour, CAPABILITIES.version_tuple[:2]) == ("tensorrt_rtx", (1, 4)):
        assert any(KERNELS[name] in kernel.name for kernel in of(compiled))
