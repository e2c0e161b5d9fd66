"""Norms at their edges: of one element, which TensorRT's layer does not take."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pipeline.testing import Call, Checked, TensorSpec, check

aten = torch.ops.aten
WEIGHT = TensorSpec((3,), values=("given", (0.5, 2.0, -1.0)), constant=True)
BIAS = TensorSpec((3,), values=("given", (1.0, -0.0, 0.25)), constant=True)
VALUES = (1.0, -2.5, math.inf, 0.0, math.nan, 3e4)


@pytest.mark.parametrize("parameters", [(None, None), (WEIGHT, BIAS), (WEIGHT, None), (None, BIAS)])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_groups_of_one(dtype: torch.dtype, shape: tuple[int, ...], parameters: Any) -> None:
    parameters = tuple(p and TensorSpec(p.shape, dtype, p.values, constant=True) for p in parameters)
    result = check(
        Call(aten.group_norm.default, (TensorSpec(shape, dtype, ("given", VALUES)), 3, *parameters, 1e-5)), build=True
    )
    assert isinstance(result, Checked), result.reasons


@pytest.mark.parametrize("shape", [(1,), (3, 1), (2, 3, 1, 1)])
def test_layers_of_one(shape: tuple[int, ...]) -> None:
    result = check(
        Call(aten.layer_norm.default, (TensorSpec(shape, values="distinct"), (1,), None, None, 1e-5)), build=True
    )
    assert isinstance(result, Checked), result.reasons


@pytest.mark.parametrize("parameters", [(None, None), (WEIGHT, BIAS)])
def test_a_group_of_one_in_a_batch_that_varies(parameters: Any) -> None:
    spec = TensorSpec(("n", 3), values="distinct")
    result = check(Call(aten.group_norm.default, (spec, 3, *parameters, 1e-6), sizes={"n": (2, 3, 8)}), build=True)
    assert isinstance(result, Checked), result.reasons
