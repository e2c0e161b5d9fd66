"""Engines called with other sizes in turn, and fresh for each: they agree with eager in float64 at every size."""

from __future__ import annotations

import pytest
import torch

import pipeline
from tests.build.in_turn import MODELS, SIZES, calls
from tests.gpu.test_wrong_kernels_gpu import BOUND

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("fresh", [False, True], ids=["one module", "a fresh one for each"])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_eager_at_every_size(name: str, dtype: torch.dtype, fresh: bool) -> None:
    def on_gpu(inputs: tuple[torch.Tensor, ...], dtype: torch.dtype = dtype) -> tuple[torch.Tensor, ...]:
        return tuple(x.to("cuda", dtype) if x.is_floating_point() else x.cuda() for x in inputs)

    torch.manual_seed(0)
    model = MODELS[name]().eval().to("cuda", dtype)
    compile = pipeline.default(require_full_compilation=True)
    compiled = compile(model, args=on_gpu(next(calls(name))), dynamic_shapes=MODELS[name].shapes)
    module, errors = compiled.module("tensorrt"), []
    found = [(compiled.module("tensorrt") if fresh else module)(*on_gpu(inputs)) for inputs in calls(name)]
    model.double()
    for ours, inputs in zip(found, calls(name), strict=True):
        rounded = (x.double() if x.is_floating_point() else x for x in on_gpu(inputs))
        with torch.no_grad():
            exact = model(*rounded)
        errors.append(float((ours.double() - exact).abs().max() / exact.abs().max()))
    wrong = {sizes: error for sizes, error in zip(SIZES, errors, strict=True) if not error <= BOUND[dtype]}
    assert not wrong, wrong
