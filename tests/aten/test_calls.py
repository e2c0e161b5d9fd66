"""What runs for a node: graphs step by step, numbers within bounds, and no memory that nobody wrote to."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch

from pipeline.aten.calls import FUNCTIONS, MOST_BITS, TooLargeError, checked_power, find_operator, safe_function
from pipeline.aten.interpreter import make_interpreter

aten = torch.ops.aten


def test_a_graph_runs_as_torch_fx_runs_it() -> None:
    graph = torch.fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    held = graph.get_attr("held")
    size = graph.call_function(operator.mul, (n, 2))
    joined = graph.call_function(aten.cat.default, ([x, held, x], 0))
    parts = graph.call_function(aten.split_with_sizes.default, (joined, [size, n]))
    part = graph.call_function(operator.getitem, (parts, 1))
    filled = graph.call_function(
        aten.full.default, ([n, 4], 0.5), {"dtype": torch.float32, "device": torch.device("cpu")}
    )
    scaled = graph.call_function(aten.add.Tensor, (filled, part), {"alpha": n})
    graph.output((scaled, {"x": [x, 3], "n": (size,)}, slice(n, None)))
    root = torch.nn.Module()
    root.register_buffer("held", torch.randn(3, 4))
    given = torch.randn(3, 4), 3
    expected = torch.fx.GraphModule(root, graph)(*given)
    run = make_interpreter(graph, root.get_buffer)
    for found in (run(*given), run(*given)):
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
        assert type(found[1]["x"]) is list and type(found[1]["n"]) is tuple
    assert any(step.drops for step in run.steps)
    with pytest.raises(TypeError, match="takes 2 inputs, but the call has 1"):
        run(given[0])


@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if not name.startswith("torch.") and "getitem" not in name]
)
@pytest.mark.parametrize("args", [(7, 2), (2.5, 2), (7,), (2.5,), (True, 1)])
def test_arithmetic_is_pythons(name: str, args: tuple[Any, ...]) -> None:
    try:
        expected = FUNCTIONS[name](*args)
    except (TypeError, ValueError):
        return
    found = safe_function(FUNCTIONS[name])(*args)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("operator.pow", (2, 10**12), TooLargeError),
        ("builtins.pow", (10, 10**9), TooLargeError),
        ("operator.lshift", (1, 10**12), TooLargeError),
        ("operator.mul", ("a", 10**12), TypeError),
        ("operator.mul", ([1], 10**12), TypeError),
        ("operator.mod", ("%1000000000d", 1), TypeError),
        ("operator.getitem", ("text", 0), TypeError),
    ],
)
def test_a_number_that_would_fill_memory_is_an_error(name: str, args: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        safe_function(FUNCTIONS[name])(*args)


def test_products_of_products_are_bounded() -> None:
    product = safe_function(operator.mul)
    value = 2**60
    with pytest.raises(TooLargeError):
        for _ in range(40):
            value = product(value, value)
    assert value.bit_length() <= MOST_BITS and checked_power(2, 2000) and safe_function(round)(5, -(10**9)) == 0
    assert safe_function(math.pow)(2, 3) == 8.0


def test_new_memory_holds_zeros() -> None:
    x = torch.full((64, 64), 7.0)
    del x
    assert not safe_function(aten.empty.memory_format)([64, 64]).any()
    assert not safe_function(aten.empty_like.default)(torch.ones(64, 64)).any()
    assert safe_function(aten.resize.default)(torch.ones(2, 2), [2, 3]).tolist() == [[1, 1, 1], [1, 0, 0]]


def test_names_lead_to_operators_and_nowhere_else() -> None:
    assert find_operator("aten.permute.default") is aten.permute.default
    for name in (
        "aten.permute",
        "aten.__class__.mro",
        "aten.add.__init__",
        "__init__.__globals__",
        "a b.c.d",
        "",
        "os.x.y",
    ):
        assert find_operator(name) is None
