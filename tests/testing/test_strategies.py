"""Strategies have tests too: what they draw is what they promise, and they draw the cases that matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.settings import CompilationSettings
from pipeline.testing import Call, TensorSpec
from pipeline.testing.programs import build_call_program
from pipeline.testing.strategies import common, strategy_for
from pipeline.testing.strategies.automatic import strategy_from_schema

aten = torch.ops.aten


def finds(strategy: st.SearchStrategy[Any], condition: Callable[[Any], bool]) -> None:
    """Among a hundred draws or so there is one like this."""
    settings = hypothesis.settings(
        max_examples=300, derandomize=True, database=None, phases=[hypothesis.Phase.generate]
    )
    hypothesis.find(strategy, condition, settings=settings)


@given(common.broadcast_shapes(3))
def test_shapes_broadcast(shapes: tuple[common.Shape, ...]) -> None:
    torch.broadcast_shapes(*shapes)


@given(common.shapes(1, 4, max_numel=100))
def test_shapes_stay_small(shape: common.Shape) -> None:
    assert 1 <= len(shape) <= 4 and torch.Size(shape).numel() <= 100


@pytest.mark.parametrize(
    "condition",
    [lambda s: s == (), lambda s: 0 in s, lambda s: 1 in s, lambda s: len(s) == 5],
    ids=["0-d", "empty", "one", "5-d"],
)
def test_shapes_of_every_kind_occur(condition: Callable[[common.Shape], bool]) -> None:
    finds(common.shapes(), condition)


@given(st.integers(0, 4).flatmap(lambda rank: st.tuples(st.just(rank), common.dim_lists(rank))))
def test_dims_are_different_and_in_range(drawn: tuple[int, list[int]]) -> None:
    rank, dims = drawn
    assert len({d % rank for d in dims}) == len(dims)
    assert all(-rank <= d < rank for d in dims)


def test_names_go_to_dims_that_broadcast_together() -> None:
    call = Call(aten.add.Tensor, (TensorSpec((4, 3)), TensorSpec((3,))))
    finds(common.name_sizes(call), lambda c: c.specs[0].shape == (4, "n") and c.specs[1].shape == ("n",))


def test_names_do_not_go_to_what_a_constant_fixes() -> None:
    call = Call(aten.add.Tensor, (TensorSpec((4, 3)), TensorSpec((3,), constant=True)))
    with pytest.raises(hypothesis.errors.NoSuchExample):
        finds(common.name_sizes(call), lambda c: c.specs[0].shape[1] != 3)


def test_names_go_only_where_they_are_allowed() -> None:
    call = Call(aten.mm.default, (TensorSpec((4, 3)), TensorSpec((3, 5))))
    finds(common.name_sizes(call, {0: [0]}), lambda c: c.specs[0].shape == ("n", 3) and c.specs[1].shape == (3, 5))
    with pytest.raises(hypothesis.errors.NoSuchExample):
        finds(common.name_sizes(call, {0: [0]}), lambda c: c.specs[0].shape != ("n", 3))


@pytest.mark.parametrize(
    "target", [aten.add.Tensor, aten.gelu.default, aten.var.correction, aten.cumsum.default], ids=str
)
@hypothesis.settings(max_examples=20)
@given(data=st.data())
def test_automatic_calls_are_well_formed(target: Any, data: st.DataObject) -> None:
    call = data.draw(strategy_for(target))
    assert call.target is target
    assert common.is_accepted_by_eager(call)


@pytest.mark.parametrize("target", [aten.__lshift__.Scalar, aten.__rshift__.Scalar, aten.max_pool1d.default], ids=str)
@hypothesis.settings(max_examples=60, database=None)
@given(data=st.data())
def test_what_is_drawn_can_be_traced(target: Any, data: st.DataObject) -> None:
    """Eager shifts bools, and pools one dim of any size: tracing refuses the former, and fixes the latter."""
    assert build_call_program(data.draw(strategy_for(target)), CompilationSettings())


@pytest.mark.parametrize(
    ("target", "condition"),
    [
        (aten.relu.default, lambda c: c.specs[0].values == "special" and c.specs[0].dtype == torch.float16),
        (aten.add.Tensor, lambda c: len({s.dtype for s in c.specs}) == 2),
        (aten.add.Tensor, lambda c: any(s.constant for s in c.specs)),
        (aten.add.Tensor, lambda c: len(c.sizes) > 1),
        (aten.add.Tensor, lambda c: c.kwargs.get("alpha", 1) != 1),
        (aten.clamp.default, lambda c: c.args[1] is None),
        (aten.sum.dim_IntList, lambda c: len(c.args[1] or ()) > 1 and min(c.args[1]) < 0),
    ],
    ids=["special half", "two dtypes", "constant", "two names", "alpha", "absent", "negative dims"],
)
def test_cases_that_matter_occur(target: Any, condition: Callable[[Call], bool]) -> None:
    finds(strategy_for(target), condition)


@pytest.mark.parametrize(
    "target", [aten.mm.default, aten.view.default, aten.convolution.default, aten.cat.default], ids=str
)
def test_tied_arguments_have_no_automatic_strategy(target: Any) -> None:
    assert strategy_from_schema(target) is None
