"""Outputs have the model's names, or those that are asked for, in the program, the engines and the report."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from tests.artifact.programs import Counter, Function, Pair, Result

X = torch.randn(2, 8)


def compiled(function: Any, **options: Any) -> Any:
    return pipeline.default()(Function(function).eval(), (X,), **options)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda m, x: m.linear(x), ["output"]),
        (lambda m, x: (m.linear(x), x + 1), ["output.0", "output.1"]),
        (lambda m, x: {"logits": m.linear(x), "states": [x + 1, x + 2]}, ["logits", "states.0", "states.1"]),
        (lambda m, x: Pair(m.linear(x), x + 1), ["first", "second"]),
        (lambda m, x: Result(m.linear(x)), ["logits"]),
        (lambda m, x: {"a.b": m.linear(x), "a": {"b": x + 1}}, ["a.b", "a.b_1"]),
    ],
)
def test_outputs_are_called_by_their_keys(function: Any, names: list[str]) -> None:
    program = compiled(function)
    assert [output.name for output in program.program.outputs] == names
    assert [tensor.name for tensor in program.networks[0].outputs] == names
    report = program.report()
    assert all(f"  {name}: float32[2, 8]" in report for name in names)


def test_outputs_are_called_as_asked() -> None:
    program = compiled(lambda m, x: (m.linear(x), x + 1), output_names=("a", "b"))
    assert [tensor.name for tensor in program.networks[0].outputs] == ["a", "b"]
    y = program(X)
    torch.testing.assert_close(y[1], X + 1)


def test_an_output_may_have_the_name_of_an_input_or_a_node() -> None:
    program = compiled(lambda m, x: (m.linear(x), x + 1), output_names=("add", "args_0"))
    y = program(X)
    torch.testing.assert_close(y[1], X + 1)
    assert len({tensor.name for tensor in (*program.networks[0].inputs, *program.networks[0].outputs)}) == 3


def test_what_is_written_to_keeps_its_name() -> None:
    program = pipeline.default().until("decompose")(Counter().eval(), (X,))
    assert {(o.kind, o.name) for o in program.outputs} >= {("buffer", "count"), ("buffer", "last")}


@pytest.mark.parametrize(
    ("names", "kind", "words"),
    [
        ("ab", TypeError, "expected a sequence of names"),
        ({"output.0": "a", "output.1": "b"}, TypeError, "expected a sequence of names"),
        ({"a", "b"}, TypeError, "expected a sequence of names"),
        (("a",), ValueError, r"has 1 names, but the model has 2 outputs: output\.0, output\.1"),
        (("a", "a"), ValueError, "has the name 'a' twice"),
        (("a", "b\nc"), ValueError, "which has a line break or another"),
        (("a", ""), ValueError, "an empty name"),
        ((1, 2), TypeError, "expected a sequence of names"),
    ],
)
def test_wrong_names_are_told(names: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        compiled(lambda m, x: (m.linear(x), x + 1), output_names=names)


def test_a_graph_of_torch_export_has_names_as_well() -> None:
    exported = torch.export.export(nn.Linear(8, 8).eval(), (X,))
    assert pipeline.capture(exported, output_names=["y"]).outputs[0].name == "y"
