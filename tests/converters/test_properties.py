"""Every converter of the registry keeps its promises, in static and in dynamic form, and as captured on a GPU: one
property over all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.aten.collectives import SPACE
from pipeline.aten.traits import Kind, op_kind
from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.recipes import qualified_name
from pipeline.testing import check_target
from pipeline.testing.strategies import handwritten_strategies, strategy_for
from pipeline.trt import CAPABILITIES

aten = torch.ops.aten

NON_ZERO = {aten.nonzero.default, aten.nonzero_numpy.default, aten.where.default, aten.masked_select.default}
REFUSED = set() if CAPABILITIES.nonzero else NON_ZERO
"""Operators whose every call this TensorRT refuses (test_index_data)."""


def computes_tensors(target: Any) -> bool:
    """Evaluators of sizes and assertions have tests of their own (test_evaluators), as quantization has
    (tests/quantized): its results are compared with those of the libraries that export it. Collectives take several
    processes (tests/distributed)."""
    if target in REFUSED or op_kind(target) is Kind.DEQUANTIZES or getattr(target, "namespace", "") == SPACE:
        return False
    return isinstance(target, torch._ops.OpOverload) and any("Tensor" in str(r.type) for r in target._schema.returns)


OPERATORS = sorted(filter(computes_tensors, DYNAMO_CONVERTERS), key=qualified_name)
TESTED = [target for target in OPERATORS if strategy_for(target) is not None]


def takes_dynamic(target: Any) -> bool:
    """Whether a converter of the operator declares that it takes dynamic sizes."""
    return any(s.supports_dynamic_shapes for s in DYNAMO_CONVERTERS.get_all_converters_with_target(target))


@pytest.mark.parametrize("target", OPERATORS, ids=qualified_name)
def test_there_is_a_strategy(target: Any) -> None:
    assert strategy_for(target) is not None, "write one in pipeline/testing/strategies/<family>.py"


@pytest.mark.parametrize("target", TESTED, ids=qualified_name)
def test_static(target: Any) -> None:
    check_target(target, dynamic=False, devices=("cuda",))


@pytest.mark.parametrize("target", list(filter(takes_dynamic, TESTED)), ids=qualified_name)
def test_dynamic(target: Any) -> None:
    check_target(target, dynamic=True, devices=("cuda",))


def test_strategies_are_for_operators() -> None:
    assert all(isinstance(target, torch._ops.OpOverload) for target in handwritten_strategies())
