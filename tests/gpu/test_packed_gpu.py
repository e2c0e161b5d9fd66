"""Packed sequences with the module on the GPU: engines agree with eager in float64, whatever the lengths."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch

import pipeline
from tests.export_fixes.packed_models import IN_PYTORCH, ONE_ENGINE, Recurrent, whole
from tests.gpu.test_control_flow_gpu import agrees
from tests.gpu.test_wrong_kernels_gpu import DTYPES

pytestmark = pytest.mark.gpu
MODELS: Final = {**ONE_ENGINE, **{name: function for name, (function, _) in IN_PYTORCH.items()}}
KINDS: Final = {"LSTM": {"num_layers": 2}, "GRU": {}, "RNN": {}}
DIMS: Final = ({1: torch.export.Dim("steps", min=5, max=20)}, None)


def inputs(lengths: list[int], dtype: torch.dtype, steps: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(sum(lengths))
    return torch.randn(len(lengths), steps or max(lengths), 3).to("cuda", dtype), torch.tensor(lengths, device="cuda")


def agree(model: Recurrent, dtype: torch.dtype, *lengths: list[int], steps: int = 0, dims: Any = None) -> None:
    model = model.eval().to("cuda", dtype)
    given = [inputs(each, dtype, steps) for each in lengths]
    compile = pipeline.default(min_block_size=1)
    run = compile(model, args=given[0], dynamic_shapes=dims).module("tensorrt")
    found = [run(*each) for each in given]
    model.double()
    for ours, (x, ends) in zip(found, given, strict=True):
        agrees(ours, model(x.double(), ends), dtype)


@DTYPES
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, dtype: torch.dtype) -> None:
    agree(Recurrent(MODELS[name]), dtype, [2, 5, 1], [1, 1, 1], [5, 5, 5], steps=5)


@DTYPES
@pytest.mark.parametrize("kind", KINDS)
def test_loops_both_ways(kind: str, dtype: torch.dtype) -> None:
    """More steps than are written out."""
    model = Recurrent(whole, kind, bidirectional=True, **KINDS[kind])
    agree(model, dtype, [2, 17, 9], [1, 1, 1], [17, 17, 17], steps=17)


@DTYPES
def test_steps_that_vary(dtype: torch.dtype) -> None:
    agree(Recurrent(whole, bidirectional=True), dtype, [2, 12, 9], [1, 5, 1], [20, 1, 7], dims=DIMS)
