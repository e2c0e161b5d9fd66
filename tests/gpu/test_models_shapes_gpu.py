"""Transformers with dynamic batch and length, or image size, on a GPU: one engine each, right at every size tried."""

from __future__ import annotations

import os

import pytest
import torch

from tests.models.shaped_models import NAMES, agrees, case, inputs, one_engine

pytestmark = pytest.mark.gpu

IEEE = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
TOLERANCE = {torch.float32: 2e-4 if IEEE else 5e-3, torch.float16: 2e-2}
"""Relative to the largest value. TF32 costs 3e-4 a product, all to one side; halves 1e-3 each layer."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_an_engine_is_right_at_every_size(name: str, dtype: torch.dtype) -> None:
    made, exact = case(name, dtype), case(name)
    module = one_engine(made).module(executor="tensorrt")
    for kwargs in inputs(made):
        truth = {
            k: v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in kwargs.items()
        }
        with torch.no_grad():
            expected = exact.model(**truth)
        actual = module(**{k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()})
        assert type(actual) is type(expected)
        for ours, theirs in zip(actual.values(), expected.values(), strict=True):
            if isinstance(ours, torch.Tensor):
                assert ours.device.type == "cuda"
                agrees(ours.float(), theirs, TOLERANCE[dtype])
