"""Operators that our own decompositions take apart: what they become keeps the same promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.converters import DECOMPOSITIONS
from pipeline.recipes import qualified_name
from pipeline.testing import check
from pipeline.testing.strategies import handwritten_strategies, strategy_for

aten = torch.ops.aten
TAKEN_APART = sorted((t for t in handwritten_strategies() if t in DECOMPOSITIONS), key=qualified_name)


BY_SCHEMA = (
    *(aten.linalg_cross.default, aten.erfc.default, aten.special_erfcx.default, aten.erfinv.default),
    *(aten.lgamma.default, aten.digamma.default, aten.hypot.default, aten.angle.default),
)


@pytest.mark.parametrize("target", [*TAKEN_APART, *BY_SCHEMA], ids=qualified_name)
@given(st.data())
def test_what_it_becomes(target: Any, data: st.DataObject) -> None:
    result = check(data.draw(strategy_for(target)), devices=("cuda",))
    assert result or all("int8" in reason.reason for reason in result.reasons), result


def test_a_batch_norm_of_inference_is_a_product_and_a_sum() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    compiled = pipeline.default(require_full_compilation=True)(model, args=(torch.randn(1, 3, 8, 8),))
    kinds = [layer.kind for layer in compiled.networks[0].layers]
    assert kinds.count("ELEMENTWISE") == 2 and kinds.count("CONVOLUTION") == 1 and len(kinds) == 5
    assert {p for recipe in compiled.refit_map.values() for p in recipe.parameters} >= {"1.running_var", "1.weight"}
