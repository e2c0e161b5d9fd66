"""Call programs with inputs and outputs by name, for files, servers and the command line."""

from __future__ import annotations

from collections.abc import Mapping

from torch.utils._pytree import tree_leaves, tree_unflatten

from pipeline.aten.types import Function, Leaf
from pipeline.inputs import unwrap_constant
from pipeline.program import Output, Port, Program


def inputs_of(program: Program) -> tuple[Port, ...]:
    """Return the inputs that a caller must pass: tensors and numbers, but not constants."""
    return tuple(port for port in program.inputs if port.kind != "constant")


def user_outputs_with_names(program: Program) -> tuple[tuple[str, Output], ...]:
    """Return the outputs that are results of the model, each with its name."""
    users = [output for output in program.outputs if output.kind == "user"]
    return tuple((output.name or f"output.{i}", output) for i, output in enumerate(users))


def outputs_by_name(program: Program, result: object) -> dict[str, Leaf]:
    """Return the results of a call by output name; results that are None are omitted."""
    rows = zip(user_outputs_with_names(program), tree_leaves(result), strict=True)
    return {name: value for (name, _), value in rows if value is not None}


def call_args(program: Program, values: Mapping[str, Leaf]) -> tuple[tuple[Leaf, ...], dict[str, Leaf]]:
    """Convert tensors and numbers by input name to the positional and keyword arguments of a call."""
    leaves = [unwrap_constant(port.value) if port.kind == "constant" else values[port.name] for port in program.inputs]
    args, kwargs = tree_unflatten(leaves, program.in_spec)
    return args, kwargs


def called_by_name(program: Program, call: Function, values_by_name: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Run ``call``, the program's callable, on tensors and numbers by input name; return the results by output name."""
    args, kwargs = call_args(program, values_by_name)
    return outputs_by_name(program, call(*args, **kwargs))
