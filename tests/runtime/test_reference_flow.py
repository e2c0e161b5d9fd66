"""Loops, conditionals, and how a whole network runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.network.description import Layer, Network, Tensor
from pipeline.runtime.reference import FLOW, KINDS, NOT_MODELLED, LayerError, ReferenceEngine, run
from pipeline.runtime.reference.executor import Plan
from pipeline.trt import CAPABILITIES, LIBRARY, trt
from tests.runtime.reference_networks import Net

SUM = trt.ElementWiseOperation.SUM
LESS = trt.ElementWiseOperation.LESS
INT = torch.int32


def plus(net: Net, a: Any, b: Any) -> Any:
    return net.net.add_elementwise(a, b, SUM).get_output(0)


def scalar(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=INT)


def counted(net: Net, loop: Any, trips: Any) -> None:
    loop.add_trip_limit(trips, trt.TripLimit.COUNT)


def recurring(loop: Any, start: Any, step: Callable[[Any], Any]) -> Any:
    """A recurrence from `start` by `step`: the layer and what the step gives."""
    recurrence = loop.add_recurrence(start)
    following = step(recurrence.get_output(0))
    recurrence.set_input(1, following)
    return recurrence, following


@given(rows=st.lists(st.integers(-5, 5), min_size=1, max_size=6), reverse=st.booleans())
def test_a_running_sum_by_iteration(rows: list[int], reverse: bool) -> None:
    net = Net()
    x = torch.tensor(rows, dtype=INT)[:, None]
    loop = net.net.add_loop()
    trips = net.constant(scalar(len(rows)))
    counted(net, loop, trips)
    element = loop.add_iterator(net.input(x), 0, reverse).get_output(0)
    start = net.constant(torch.zeros(1, dtype=INT))
    recurrence, total = recurring(loop, start, lambda value: plus(net, value, element))
    last = loop.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0)
    kept = loop.add_loop_output(total, trt.LoopOutput.CONCATENATE, 0)
    backwards = loop.add_loop_output(total, trt.LoopOutput.REVERSE, 1)
    for output in (kept, backwards):
        output.set_input(1, trips)
    results = net.output(last.get_output(0), kept.get_output(0), backwards.get_output(0)).run()
    sums = (x.flip(0) if reverse else x).cumsum(0, dtype=INT)
    assert torch.equal(results[0], sums[-1])
    assert torch.equal(results[1], sums)
    assert torch.equal(results[2], sums.flip(0).t())


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_a_loop_while_a_condition_holds(limit: int) -> None:
    net = Net()
    loop = net.net.add_loop()
    bound, one = net.input(scalar(limit)), net.constant(scalar(1))
    recurrence, _ = recurring(loop, net.constant(scalar(0)), lambda value: plus(net, value, one))
    condition = net.net.add_elementwise(recurrence.get_output(0), bound, LESS).get_output(0)
    loop.add_trip_limit(condition, trt.TripLimit.WHILE)
    last = loop.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0)
    assert net.output(last.get_output(0)).run()[0].item() == limit


def test_a_loop_in_a_loop_that_uses_the_outer_value() -> None:
    """Three times: x becomes x + 2 * x, by adding x twice in an inner loop whose step is the outer value."""
    net = Net()
    outer = net.net.add_loop()
    counted(net, outer, net.constant(scalar(3)))

    def twice(value: Any) -> Any:
        inner = net.net.add_loop()
        counted(net, inner, net.constant(scalar(2)))
        recurrence, _ = recurring(inner, value, lambda part: plus(net, part, value))
        return inner.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0).get_output(0)

    recurrence, _ = recurring(outer, net.input(torch.tensor([1.0, 2.0])), twice)
    last = outer.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0)
    assert net.output(last.get_output(0)).run()[0].tolist() == [27.0, 54.0]


def test_a_loop_of_no_trips() -> None:
    net = Net()
    loop = net.net.add_loop()
    trips = net.input(scalar(0))
    counted(net, loop, trips)
    one = net.constant(torch.ones(2))
    recurrence, following = recurring(loop, net.input(torch.zeros(2)), lambda value: plus(net, value, one))
    last = loop.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0)
    kept = loop.add_loop_output(following, trt.LoopOutput.CONCATENATE, 0)
    kept.set_input(1, trips)
    results = net.output(last.get_output(0), kept.get_output(0)).run()
    assert results[0].tolist() == [0.0, 0.0]
    assert results[1].shape == (0, 2)


@pytest.mark.parametrize("taken", [True, False])
def test_only_the_branch_taken_runs(taken: bool) -> None:
    """The other branch would read outside its data."""
    net = Net()
    x, start = net.input(torch.arange(4.0)), net.input(torch.tensor([9]))
    conditional = net.net.add_if_conditional()
    conditional.set_condition(net.input(torch.tensor(taken)))
    source, begin = (conditional.add_input(tensor).get_output(0) for tensor in (x, start))
    good = net.net.add_slice(source, (1,), (2,), (1,)).get_output(0)
    bad = net.net.add_slice(source, (0,), (2,), (1,))
    bad.set_input(1, begin)
    output = conditional.add_output(good, bad.get_output(0))
    net.output(output.get_output(0))
    if taken:
        assert net.run()[0].tolist() == [1.0, 2.0]
    else:
        with pytest.raises(LayerError, match=r"SLICE .* exceed the range"):
            net.run()


def test_a_conditional_in_a_loop() -> None:
    """Adds one while the value is below two, then ten."""
    net = Net()
    loop = net.net.add_loop()
    counted(net, loop, net.constant(scalar(4)))
    one, ten, two = (net.constant(scalar(value)) for value in (1, 10, 2))

    def step(value: Any) -> Any:
        conditional = net.net.add_if_conditional()
        conditional.set_condition(net.net.add_elementwise(value, two, LESS).get_output(0))
        inside = conditional.add_input(value).get_output(0)
        return conditional.add_output(plus(net, inside, one), plus(net, inside, ten)).get_output(0)

    recurrence, _ = recurring(loop, net.input(scalar(0)), step)
    last = loop.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0)
    assert net.output(last.get_output(0)).run()[0].item() == 22


def test_every_kind_has_a_meaning_or_a_reason() -> None:
    assert CAPABILITIES.layer_kinds <= {*KINDS, *FLOW, *NOT_MODELLED}
    assert not (set(KINDS) & FLOW) | (set(KINDS) & set(NOT_MODELLED))
    assert all(NOT_MODELLED.values())


def chain(length: int) -> Network:
    names = [f"t{index}" for index in range(length + 1)]
    rows = [Tensor(name, "float32", (-1,)) for name in names]
    layers = tuple(
        Layer("UNARY", f"l{index}", (names[index],), (rows[index + 1],), (("op", "NEG"),)) for index in range(length)
    )
    return Network("chain", (rows[0],), (rows[-1],), layers)


def test_layers_in_any_order_and_deep_networks_run() -> None:
    network = chain(2001)
    backwards = Network("b", network.inputs, network.outputs, network.layers[::-1])
    assert run(backwards, {}, {"t0": torch.ones(2)})["t2001"].tolist() == [-1.0, -1.0]


def test_values_are_forgotten_after_their_last_use() -> None:
    plan = Plan.from_network(chain(3))
    assert plan.last_uses == {"l0": ("t0",), "l1": ("t1",), "l2": ("t2",)}


def test_what_nobody_needs_does_not_run() -> None:
    network = chain(1)
    row = Tensor("dead", "float32", (-1,))
    dead = Layer("PLUGIN_V3", "dead", ("t0",), (row,))
    assert run(Network("n", network.inputs, network.outputs, (dead, *network.layers)), {}, {"t0": torch.ones(1)})
    with pytest.raises(
        LayerError, match="PLUGIN_V3 'dead': the CPU executor lacks this layer: only the plugin's own code"
    ):
        run(Network("n", network.inputs, (row,), (dead,)), {}, {"t0": torch.ones(1)})


def test_outputs_that_differ_from_their_rows_are_errors() -> None:
    network = chain(1)
    wrong = Layer("UNARY", "neg", ("t0",), (Tensor("t1", "float16", (-1,)),), (("op", "NEG"),))
    with pytest.raises(LayerError, match=r"UNARY 'neg': output 't1' is torch.float32\[3\], but the network declares"):
        run(Network("n", network.inputs, network.outputs, (wrong,)), {}, {"t0": torch.ones(3)})


def test_inputs_are_checked() -> None:
    with pytest.raises(LayerError, match="input 't0' is missing; the given inputs are"):
        run(chain(1), {}, {"x": torch.ones(1)})
    with pytest.raises(LayerError, match=r"input 't0' is torch.float32\[1, 1\]"):
        run(chain(1), {}, {"t0": torch.ones(1, 1)})
    with pytest.raises(LayerError, match="takes 1 inputs, got 2"):
        ReferenceEngine(chain(1), {})([torch.ones(1), torch.ones(1)])


def test_an_engine_takes_and_gives_lists_in_order() -> None:
    net = Net()
    a, b = net.input(torch.zeros(1)), net.input(torch.zeros(1))
    difference = net.net.add_elementwise(a, b, trt.ElementWiseOperation.SUB).get_output(0)
    network = net.output(difference, plus(net, a, b)).described()
    engine = ReferenceEngine(network, net.weights)
    assert [value.item() for value in engine([torch.tensor([5.0]), torch.tensor([3.0])])] == [2.0, 8.0]
    assert [value.item() for value in engine([torch.tensor([1.0]), torch.tensor([3.0])])] == [-2.0, 4.0]


@pytest.mark.skipif(not CAPABILITIES.collectives, reason=f"{LIBRARY} takes no collective")
def test_a_collective_is_described_by_what_its_maker_noted() -> None:
    net = Net()
    operation, reduction = trt.CollectiveOperation.ALL_GATHER, trt.ReduceOperation.NONE
    layer = net.net.add_dist_collective(net.input(torch.ones(4, 3)), operation, reduction, -1, None)
    net.output(layer.get_output(0))
    with pytest.raises(ValueError, match="its metadata must be its operation"):
        net.described()
    layer.metadata, layer.num_ranks = "ALL_GATHER NONE", 2
    assert "operation=ALL_GATHER reduction=NONE num_ranks=2" in str(net.described())
    with pytest.raises(LayerError, match="the engine has a collective, but the program's graph has none"):
        net.run()


def test_outputs_share_memory_with_nothing() -> None:
    net = Net()
    x = torch.ones(2, 3)
    source, kept = net.input(x), torch.ones(2)
    constant = net.constant(kept)
    same, turned = net.net.add_identity(source).get_output(0), net.net.add_shuffle(source).get_output(0)
    results = net.output(same, turned, net.net.add_identity(constant).get_output(0)).run()
    for result in results:
        result.zero_()
    assert x.all() and kept.all()


def test_results_need_no_gradient() -> None:
    result = run(chain(1), {}, {"t0": torch.ones(1, requires_grad=True)})["t1"]
    assert not result.requires_grad


@pytest.mark.parametrize("bound", [2, 4])
def test_assertions_in_a_nested_loop_are_checked_each_time(bound: int) -> None:
    net = Net()
    outer, one, limit = net.net.add_loop(), net.constant(scalar(1)), net.constant(scalar(bound))
    counted(net, outer, net.constant(scalar(2)))

    def step(value: Any) -> Any:
        inner = net.net.add_loop()
        counted(net, inner, net.constant(scalar(2)))
        recurrence, _ = recurring(inner, value, lambda part: plus(net, part, one))
        small = net.net.add_elementwise(recurrence.get_output(0), limit, LESS).get_output(0)
        net.net.add_assertion(small, "too large")
        return inner.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0).get_output(0)

    recurrence, _ = recurring(outer, net.input(scalar(0)), step)
    last = outer.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0)
    net.output(last.get_output(0))
    if bound == 4:
        assert net.run()[0].item() == 4
    else:
        with pytest.raises(LayerError, match="too large"):
            net.run()
