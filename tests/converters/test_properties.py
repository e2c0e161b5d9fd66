"""Every converter of the registry keeps its promises, in static and in dynamic form: one property over all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.recipes import qualified_name
from pipeline.testing import check_target
from pipeline.testing.strategies import by_hand, for_target

OPERATORS = sorted((t for t in DYNAMO_CONVERTERS if isinstance(t, torch._ops.OpOverload)), key=qualified_name)
OPERATORS = [t for t in OPERATORS if t.namespace != "aten" or not t._schema.name.startswith("aten::sym_")]


def takes_dynamic(target: Any) -> bool:
    """Whether a converter of the operator declares that it takes dynamic sizes."""
    return any(s.supports_dynamic_shapes for s in DYNAMO_CONVERTERS.get_all_converters_with_target(target))


@pytest.mark.parametrize("target", OPERATORS, ids=qualified_name)
def test_there_is_a_strategy(target: Any) -> None:
    assert for_target(target) is not None, "write one in pipeline/testing/strategies/<family>.py"


@pytest.mark.parametrize("target", [t for t in OPERATORS if for_target(t) is not None], ids=qualified_name)
def test_static(target: Any) -> None:
    check_target(target, dynamic=False)


@pytest.mark.parametrize(
    "target", [t for t in OPERATORS if for_target(t) is not None and takes_dynamic(t)], ids=qualified_name
)
def test_dynamic(target: Any) -> None:
    check_target(target, dynamic=True)


def test_no_strategy_is_left_over() -> None:
    """A strategy is for an operator with a converter, or for one that is taken apart into such."""
    strangers = [t for t in by_hand() if not isinstance(t, torch._ops.OpOverload)]
    assert not strangers
