"""What the tests of all passes need: a program before and after, and its values in eager PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import pipeline
from pipeline import Program
from pipeline.stages.improve import Improve


def decomposed(
    model: nn.Module, *args: torch.Tensor, dynamic_shapes: Any = None, profiles: Any = None, **settings: Any
) -> Program:
    """The program of a model as passes get it."""
    decompose = pipeline.default(**settings).until("decompose")
    program: Program = decompose(model.eval(), args=args, dynamic_shapes=dynamic_shapes, profiles=profiles)
    return program


def improved(program: Program, *passes: str) -> Program:
    """The program after these passes; the one given is still what it was."""
    before = str(program)
    after = Improve(passes=passes)(program)
    assert str(program) == before
    return after


def targets(program: Program) -> list[str]:
    """The operators of a program, in order, without ``aten.``"""
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    return [str(n.target).removeprefix("aten.") for n in calls]


def values(program: Program, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What the program's graph gives in eager PyTorch, its constants made by their recipes."""
    given = {port.name: value for port, value in zip(program.inputs, inputs, strict=True)}
    constants = {name: recipe.evaluate(program.parameters) for name, recipe in program.constants.items()}
    names = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    module = torch.fx.GraphModule(program.graph_module, program.graph)
    with torch.no_grad():
        result: list[torch.Tensor] = module(*((given | constants)[name] for name in names))
    return result


def agree(a: Program, b: Program, *inputs: torch.Tensor, rtol: float = 0, atol: float = 0) -> None:
    """Both programs give the same, and every fake value says what is given."""
    for x, y in zip(values(a, *inputs), values(b, *inputs), strict=True):
        torch.testing.assert_close(y, x, rtol=rtol, atol=atol)
    for node, y in zip(b.graph.output_node().args[0], values(b, *inputs), strict=True):
        assert node.meta["val"].dtype == y.dtype
