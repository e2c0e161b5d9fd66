"""Classify calls in a graph by the traits of their operators and by their arguments."""

from __future__ import annotations

from typing import Any, Final

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.traits import Does, does, is_view

aten = torch.ops.aten

LIFTS: Final = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default})
"""Operators that create a new tensor from a literal at each call."""
READS: Final = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""The tags of operators that make a number or a size of values."""


def is_pointwise(node: torch.fx.Node) -> bool:
    """Return whether each element of the result comes from one element of each input."""
    kind = does(node.target)
    return kind is Does.POINTWISE or (kind is Does.COPIES and torch.Tag.pointwise in getattr(node.target, "tags", ()))


def moves(node: torch.fx.Node) -> bool:
    """Return whether an operator only moves data: a view, a copy or a cast."""
    return does(node.target) in (Does.COPIES, Does.DECLARES, Does.CASTS, Does.RESHAPES, Does.SQUEEZES) or is_view(
        node.target
    )


def is_cheap(node: torch.fx.Node, *, sources: bool = False) -> bool:
    """Return whether an operator costs almost nothing wherever it runs; ``sources``: include those that create tensors
    from sizes."""
    return moves(node) or is_pointwise(node) or (sources and does(node.target) is Does.FILLS)


def draws_random(node: torch.fx.Node) -> bool:
    """Return whether an operator, or one in its control-flow branches, draws random numbers."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return any(draws_random(inner) for branch in branches(node) for inner in branch.graph.nodes)
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def drops_nothing(node: torch.fx.Node) -> bool:
    """Return whether an operator's dropout is off: attention with probability 0, dropout in evaluation."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    names = {a.name for a in node.target._schema.arguments} & {"dropout_p", "train", "training"}
    return any(not argument(node, name) for name in names)


def mutates(node: torch.fx.Node) -> bool:
    """Return whether a node writes to one of its arguments."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target._schema.name == "aten::batch_norm":
        return bool(node.args[5]) and node.args[3] is not None  # training: the running statistics are updated, if any
    return node.target._schema.is_mutable


def branches(node: torch.fx.Node) -> list[torch.fx.GraphModule]:
    """Return the graphs that a control-flow operator selects from or repeats."""
    owner = node.graph.owning_module
    names = [n.target for n in node.all_input_nodes if n.op == "get_attr"]
    found: list[Any] = [owner.get_submodule(str(name)) for name in names] if owner is not None else []
    return [module for module in found if isinstance(module, torch.fx.GraphModule)]
