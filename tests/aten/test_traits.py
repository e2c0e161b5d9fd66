"""The facts about operators: a row for every view and every operator that converts, and rows that are true."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from torch.utils._pytree import tree_leaves

from pipeline.aten import traits
from pipeline.aten.op_predicates import is_pointwise, moves_elements
from pipeline.aten.traits import PART, SAME, Kind, has_explicit_sizes, is_view, op_kind
from pipeline.capture.aliases import NEVER_RETURN_INPUT
from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.improvements.rewriting import permuted_dims
from pipeline.recipes import qualified_name
from pipeline.testing import Call
from pipeline.testing.strategies import strategy_for

aten = torch.ops.aten
CONVERTED = sorted((t for t in DYNAMO_CONVERTERS if isinstance(t, torch._ops.OpOverload)), key=qualified_name)


def all_operators() -> Iterator[Any]:
    """ATen's, but for those that only scripts have."""
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::") and hasattr(aten, packet):
            yield getattr(getattr(aten, packet), overload or "default")


def test_every_view_has_a_row() -> None:
    views = [op for op in all_operators() if is_view(op)]
    assert len(views) > 80
    assert not [str(op) for op in views if op_kind(op) is None], "say what it does in pipeline/aten/traits.py"


def test_every_operator_that_converts_has_a_row() -> None:
    assert not [str(op) for op in CONVERTED if op_kind(op) is None], "say what it does in pipeline/aten/traits.py"


def test_each_operator_has_one_row() -> None:
    names = [name for row in traits.TABLE.values() for name in row.split()]
    assert len(names) == len(set(names))
    assert traits.TABLE.keys() == set(Kind)


def test_rows_are_operators() -> None:
    known = {str(op).removeprefix("aten.") for op in traits.operators_of_kind(*Kind)}
    known |= {name.rpartition(".")[0] for name in known}
    since_2_12, until_2_12 = {"_grouped_mm"}, {"rename", "refine_names", "align_to"}
    assert {name for name in traits.ROWS if name not in known} <= since_2_12 | until_2_12


def of_kind(*kinds: Kind) -> Any:
    """The operators that convert and do one of these."""
    targets = [op for op in CONVERTED if op_kind(op) in kinds and strategy_for(op) is not None]
    return pytest.mark.parametrize("target", targets, ids=qualified_name)


def for_calls(target: Any, holds: Callable[[Call], None]) -> None:
    """Some calls of an operator, as many as the profile says."""
    strategy = strategy_for(target)
    assert strategy is not None
    given(strategy)(holds)()


def elements(value: Any) -> set[float]:
    tensors = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    return {x for t in tensors for x in t.to(torch.float64).nan_to_num(7.5).flatten().tolist()}


@of_kind(*PART)
def test_the_result_has_no_elements_but_those_of_the_first_argument(target: Any) -> None:
    def holds(call: Call) -> None:
        args, kwargs = call.create_arguments()
        result = target(*args, **kwargs)
        found = elements(result[:1] if op_kind(target) is Kind.SELECTS and "indices" in str(target._schema) else result)
        assert found <= elements(args[0])
        assert op_kind(target) not in SAME or not found or found == elements(args[0])

    for_calls(target, holds)


@of_kind(*NEVER_RETURN_INPUT)
def test_fresh_results_share_no_memory_with_an_argument(target: Any) -> None:
    def holds(call: Call) -> None:
        args, kwargs = call.create_arguments()
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        with suppress(NotImplementedError):  # no kernel for halves on a CPU
            made = {t.untyped_storage().data_ptr() for t in tree_leaves(target(*args, **kwargs))} - {0}
            assert not given & made

    for_calls(target, holds)


@of_kind(Kind.PLACES)
def test_places_are_not_negative(target: Any) -> None:
    def holds(call: Call) -> None:
        args, kwargs = call.create_arguments()
        assert all(place >= 0 for place in elements(target(*args, **kwargs)))

    for_calls(target, holds)


@of_kind(Kind.POINTWISE)
def test_elementwise_operators_broadcast(target: Any) -> None:
    def holds(call: Call) -> None:
        args, kwargs = call.create_arguments()
        result = target(*args, **kwargs)
        shapes = [t.shape for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        assert tree_leaves(result)[0].shape == torch.broadcast_shapes(*shapes)

    for_calls(target, holds)


@of_kind(Kind.RESHAPES)
def test_what_states_its_sizes_has_them(target: Any) -> None:
    def holds(call: Call) -> None:
        args, kwargs = call.create_arguments()
        result = target(*args, **kwargs)
        torch.testing.assert_close(result.flatten(), args[0].flatten(), rtol=0, atol=0, equal_nan=True)
        assert not has_explicit_sizes(target) or all(s in (-1, n) for s, n in zip(args[1], result.shape, strict=True))

    for_calls(target, holds)


def node(target: Any, *args: Any) -> torch.fx.Node:
    """A call on tensors."""
    graph = torch.fx.Graph()
    inputs = [a if not isinstance(a, torch.Tensor) else graph.placeholder(f"x{i}") for i, a in enumerate(args)]
    made = graph.call_function(target, tuple(inputs))
    made.meta["val"] = target(*args)
    return made


X = torch.randn(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.permute.default, ([0, -1, 1, 2],)),
        (aten.transpose.int, (-1, 1)),
        (aten.mT.default, ()),
        (aten.movedim.int, (0, 2)),
        (aten.swapaxes.default, (0, 3)),
    ],
)
def test_the_order_of_transposed_dims(target: Any, args: Any) -> None:
    order = permuted_dims(node(target, X, *args))
    assert torch.equal(X.permute(order), target(X, *args))


def test_what_is_cheap_is_told_from_what_computes() -> None:
    for target, args in ((aten.movedim.int, (0, 1)), (aten.narrow.default, (0, 0, 1)), (aten.view_as.default, (X,))):
        assert moves_elements(node(target, X, *args))
    assert not moves_elements(node(aten.flip.default, X, [0]))
    assert is_pointwise(node(aten.hardswish.default, X)) and is_pointwise(node(aten.relu.default, X))
    assert not is_pointwise(node(aten.prelu.default, X, torch.rand(3)))
    assert op_kind(operator.add) is None
    assert op_kind(aten.max.other) is Kind.POINTWISE and op_kind(aten.max.dim) is Kind.REDUCES
    assert op_kind(aten.view.dtype) is Kind.REINTERPRETS
    assert op_kind(aten.rand.default) is Kind.DRAWS
