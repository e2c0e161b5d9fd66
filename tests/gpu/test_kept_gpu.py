"""What the kernel of a reduction keeps of each element, broadcast behind it: TensorRT-RTX alone gets it wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline
from pipeline.impl import base
from tests.build.kept import FORMS, RIGHT, Broadcast, dynamic, inputs
from tests.gpu.test_wrong_kernels_gpu import BOUND, error

pytestmark = pytest.mark.gpu
CASES = [
    pytest.param(form, dtype, marks=() if (at + turn) % 3 == 0 else pytest.mark.slow, id=f"{form}-{dtype}")
    for at, form in enumerate({**FORMS, **RIGHT})
    for turn, dtype in enumerate(BOUND)
]
"""Every form in every dtype; every day each in one, in turn."""


@pytest.mark.parametrize(("form", "dtype"), CASES)
def test_agrees_with_eager(form: str, dtype: torch.dtype) -> None:
    assert error(Broadcast(form).eval(), inputs(form, dtype, "cuda")) <= BOUND[dtype]


@pytest.mark.parametrize(("form", "dtype"), [case for case in CASES if dynamic(str(case.values[0])) is not None])
def test_agrees_with_eager_in_sizes_that_vary(form: str, dtype: torch.dtype) -> None:
    shapes: Any = dynamic(form)
    model, (x, y) = Broadcast(form).eval(), inputs(form, dtype, "cuda")
    compile = pipeline.default(require_full_compilation=True)
    module = compile(model, args=(x, y), dynamic_shapes=shapes).module("tensorrt")
    rows = [y.shape[1]] if 1 not in shapes[1] else [5, 2, 40]
    for batch, many in ((4, rows[0]), (2, rows[-1]), (8, rows[len(rows) // 2])):
        a = torch.randn(batch, *x.shape[1:], device="cuda").to(dtype)
        b = torch.randn(batch, many, *y.shape[2:], device="cuda").to(dtype)
        want = model(a.double(), b.double())
        assert float((module(a, b).double() - want).abs().max() / want.abs().max()) <= BOUND[dtype]


@pytest.mark.xfail(strict=True, reason="what `quirks.broadcast_after_reduction` is for")
def test_softmax_that_its_kernel_broadcasts(monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_is: Any = lambda net, x, shape: x  # noqa: E731
    monkeypatch.setattr(base, "expand", as_it_is)
    assert error(Broadcast("softmax").eval(), inputs("softmax", torch.float32, "cuda")) <= BOUND[torch.float32]
