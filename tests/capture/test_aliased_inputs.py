"""Inputs are told apart by their places: examples that are one tensor, lie in one memory or are weights as well."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline

X, Y, BIG = torch.randn(2, 4), torch.randn(2, 4), torch.randn(5, 4)
COMPLEX = torch.randn(2, 4, dtype=torch.complex64)


class Difference(nn.Module):
    """Two inputs, told apart."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[N, 4], [N, 4] -> [N, 4]"""
        return x - y


class Nested(nn.Module):
    """The same in containers."""

    def forward(self, given: dict[str, Any]) -> torch.Tensor:
        """{a: [[N, 4]], b: ([N, 4], number)} -> [N, 4]"""
        return given["a"][0] - given["b"][0] * given["b"][1]


class Weighed(nn.Module):
    """An input less a parameter, a buffer and a tensor that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4))
        self.register_buffer("buffer", torch.randn(2, 4))
        self.other = torch.randn(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 4] -> [2, 4]"""
        return x - self.weight - 2 * self.buffer - 4 * self.other


def run(model: nn.Module, *args: Any, compiled_for: tuple[Any, ...], **named: Any) -> Any:
    """What the model, compiled for some inputs, gives for others."""
    return pipeline.default()(model.eval(), compiled_for, **named).module(executor="reference")(*args)


PAIRS = {
    "one tensor": (X, X),
    "views of one tensor": (X, X.view(2, 4)),
    "overlapping": (BIG[:2], BIG[1:3]),
    "a row for all": (X, X[:1].expand(2, 4)),
    "one that needs gradients": (parameter := nn.Parameter(X.clone()), parameter),
    "one Input": (given := pipeline.Input((2, 4)), given),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_two_inputs_are_two(pair: Any) -> None:
    torch.testing.assert_close(run(Difference(), X, Y, compiled_for=pair), X - Y)


def test_so_are_keywords_and_what_is_nested() -> None:
    by_keyword = pipeline.default()(Difference().eval(), (X,), {"y": X}).module(executor="reference")
    torch.testing.assert_close(by_keyword(X, y=Y), X - Y)
    nested = run(Nested(), {"a": [X], "b": (Y, 2.0)}, compiled_for=({"a": [X], "b": (X, 2.0)},))
    torch.testing.assert_close(nested, X - 2 * Y)


@pytest.mark.parametrize("make", [lambda x: x.to_sparse(), lambda _: COMPLEX, lambda _: COMPLEX.conj()])
def test_so_are_tensors_of_every_kind(make: Any) -> None:
    x, y = make(X), make(Y) * 2
    torch.testing.assert_close(run(Difference(), x, y, compiled_for=(x, x)), x - y)


@pytest.mark.parametrize("name", ["weight", "buffer", "other"])
def test_an_input_is_no_weight(name: str) -> None:
    model = Weighed()
    torch.testing.assert_close(run(model, X, compiled_for=(getattr(model, name),)), model(X))


def test_a_dim_ties_sizes_and_no_tensors() -> None:
    batch = Dim("batch", min=1, max=8)
    compiled = pipeline.default()(Difference().eval(), (X, X), dynamic_shapes=({0: batch}, {0: batch}))
    assert len(compiled.program.shapes.symbols) == 1
    x, y = torch.randn(2, 5, 4)
    torch.testing.assert_close(compiled.module(executor="reference")(x, y), x - y)


class Sums(nn.Module):
    """Two inputs of sizes of their own."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[N, 4], [M, 4] -> [4]"""
        return x.sum(0) - y.sum(0)


RANGE = pipeline.Input(min_shape=(1, 4), max_shape=(8, 4), name="rows")


@pytest.mark.parametrize(
    "args, shapes",
    [((RANGE, RANGE), None), ((X, X), ({0: Dim("n", min=1, max=8)}, {0: Dim("m", min=1, max=8)}))],
    ids=["Input", "Dim"],
)
def test_sizes_are_their_own_too(args: Any, shapes: Any) -> None:
    x, y = torch.randn(3, 4), torch.randn(7, 4)
    given = run(Sums(), x, y, compiled_for=args, dynamic_shapes=shapes)
    torch.testing.assert_close(given, x.sum(0) - y.sum(0))


class Writes(nn.Module):
    """Adds to its first input, and to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[2, 4], [2, 4] -> [2, 4]"""
        x.add_(1)
        self.count.add_(2)
        return x - y - self.count


@pytest.mark.parametrize("pair", [(X, X), (X, X.detach()), (BIG[:2], BIG[1:3])], ids=["one", "alias", "overlapping"])
def test_what_is_written_to_one_input_does_not_reach_the_other(pair: Any) -> None:
    before, x = [each.clone() for each in pair], X.clone()
    torch.testing.assert_close(run(Writes(), x, Y, compiled_for=pair), X + 1 - Y - 2)
    torch.testing.assert_close(x, X + 1)
    assert all(map(torch.equal, pair, before))


def test_an_input_may_be_a_buffer_that_is_written_to() -> None:
    model = Writes()
    torch.testing.assert_close(run(model, X.clone(), Y, compiled_for=(model.count, Y)), X - Y - 1)
    assert not model.count.any()


def test_an_export_that_took_two_inputs_for_one_is_told(caplog: pytest.LogCaptureFixture) -> None:
    exported = torch.export.export(Difference().eval(), (X, X))
    pipeline.capture(exported)
    assert "one tensor was exported as the inputs x and y, which torch.export treats as a single input" in caplog.text
    model = Weighed()
    pipeline.capture(torch.export.export(model, (model.weight,)))
    assert "the inputs weight and x" in caplog.text
    caplog.clear()
    pipeline.capture(torch.export.export(Difference().eval(), (X, Y)))
    assert "one tensor" not in caplog.text


@pytest.fixture
def backend() -> Iterator[Any]:
    """Dynamo without what other tests compiled, and calls as inference makes them."""
    torch.compiler.reset()
    with torch.no_grad():
        yield pipeline.backend(executor="reference")
    torch.compiler.reset()


@pytest.mark.parametrize("model", [Difference(), Writes()], ids=["reads", "writes"])
def test_torch_compile_gives_what_eager_gives_for_one_tensor_and_for_two(model: nn.Module, backend: Any) -> None:
    compiled = torch.compile(copy.deepcopy(model), backend=backend)
    for at in ((0, 0), (0, 1), (0, 2), (1, 1), (2, 0)):
        eager, ours = BIG.clone(), BIG.clone()
        expected, found = (f(*(x[i : i + 2] for i in at)) for f, x in ((model, eager), (compiled, ours)))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(ours, eager)


def test_torch_compile_takes_a_weight_as_an_input(backend: Any) -> None:
    model = Weighed()
    compiled = torch.compile(model, backend=backend)
    for x in (model.weight, X, model.buffer, model.other, Y):
        torch.testing.assert_close(compiled(x), model(x))


def test_large_examples_are_not_copied() -> None:
    large = torch.zeros(1, dtype=torch.float16).expand(1 << 30, 1 << 10)  # two terabytes, if it were copied
    program = pipeline.capture(Difference().eval(), (large, large))
    assert [port.shape for port in program.inputs] == [(1 << 30, 1 << 10)] * 2
