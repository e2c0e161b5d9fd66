"""Define predicates on calls in a graph, by operator and arguments.
`branch_only_reason` finds calls that must run only if their branch is selected: an engine computes both branches."""

from __future__ import annotations

from typing import Any, Final

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.traits import Kind, is_view, op_kind
from pipeline.aten.types import Argument, Target, aten

LIFTS: Final = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default})
"""Operators that copy a tensor literal, so that each call gets a new tensor."""
READS: Final = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""Tags of operators whose result is a number, or has a size, that depends on tensor values."""


def is_pointwise(node: torch.fx.Node) -> bool:
    """Return whether a node is elementwise: each element of its result depends on one element of each input."""
    kind = op_kind(node.target)
    return kind is Kind.POINTWISE or (kind is Kind.COPIES and torch.Tag.pointwise in getattr(node.target, "tags", ()))


def moves_elements(node: torch.fx.Node) -> bool:
    """Return whether a node only moves or casts elements: it is a view, a copy or a cast."""
    return op_kind(node.target) in (Kind.COPIES, Kind.DECLARES, Kind.CASTS, Kind.RESHAPES, Kind.SQUEEZES) or is_view(
        node.target
    )


def is_cheap(node: torch.fx.Node, *, include_creation: bool = False) -> bool:
    """Return whether a node costs almost nothing: moves elements, is elementwise, or (``include_creation``) creates
    a tensor, as ``full`` does."""
    return moves_elements(node) or is_pointwise(node) or (include_creation and op_kind(node.target) is Kind.FILLS)


def has_randomness(node: torch.fx.Node) -> bool:
    """Return whether a node, or a node in the branches of a control-flow operator, draws random numbers."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return any(has_randomness(inner) for branch in branch_graphs(node) for inner in branch.graph.nodes)
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def has_no_dropout(node: torch.fx.Node) -> bool:
    """Return whether the dropout of a node's operator is off: ``dropout_p`` is 0, or ``train(ing)`` is False."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return not all(argument(node, name, True) for name in ("dropout_p", "train", "training"))


def mutates_argument(node: torch.fx.Node) -> bool:
    """Return whether a node's operator writes to one of its arguments."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target._schema.name == "aten::batch_norm":
        return bool(node.args[5]) and node.args[3] is not None  # training: the running statistics are updated, if any
    return node.target._schema.is_mutable


def branch_graphs(node: torch.fx.Node) -> list[torch.fx.GraphModule]:
    """Return the graphs of a control-flow node: the branches of a condition, or the body of a loop."""
    owner = node.graph.owning_module
    names = [n.target for n in node.all_input_nodes if n.op == "get_attr"]
    found: list[Any] = [owner.get_submodule(str(name)) for name in names] if owner is not None else []
    return [module for module in found if isinstance(module, torch.fx.GraphModule)]


_BY_POSITIONS: Final = """
    index _unsafe_index index_select gather take take_along_dim embedding embedding_bag _embedding_bag
    _embedding_bag_forward_only scatter scatter_add scatter_reduce index_put _unsafe_index_put index_copy index_fill
    index_add index_reduce put one_hot bincount _index_put_impl
"""
BY_POSITIONS: Final = frozenset(_BY_POSITIONS.split())
"""Names of operators that read or write elements at indices that a tensor contains."""

_DIVIDES: Final = frozenset(("div", "floor_divide", "remainder", "fmod"))


def branch_only_reason(target: Target, args: Argument, result: object, *, mutates_own_memory: bool = False) -> str:
    """Return the reason why a call must not run unless its branch is selected; empty if the call may always run.

    Args:
        target: the operator.
        args: its arguments: nodes, or tensors.
        result: its result, which may be fake.
        mutates_own_memory: whether all memory that the call mutates was allocated by the branch itself.
    """
    schema = target._schema if isinstance(target, torch._ops.OpOverload) else None
    name = "" if schema is None else schema.name.partition("::")[2].removesuffix("_")
    kind = op_kind(target)
    if kind is Kind.DRAWS and not _is_inference_dropout(target, args):
        return "draws random numbers"
    if schema is not None and (not schema.returns or (schema.is_mutable and not mutates_own_memory)):
        return "has a side effect"
    if kind is Kind.READS and not name.startswith("sym_") and not isinstance(result, int | float):  # a known number
        return "reads data"
    if name in BY_POSITIONS and not _indexes_by_mask(args):
        return "reads or writes at indices that may be valid only in this branch"
    by_data = name in _DIVIDES and isinstance(args[1], torch.fx.Node | torch.Tensor)
    if by_data and isinstance(result, torch.Tensor) and not result.is_floating_point():
        return "divides by integers that may be 0 if another branch is taken"
    return ""


def _indexes_by_mask(args: Argument) -> bool:
    """Return whether all indices of an indexing operator are boolean masks, as in ``x[mask] = 0``."""
    places = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    values = [place.meta.get("val") if isinstance(place, torch.fx.Node) else place for place in places]
    return bool(values) and all(isinstance(v, torch.Tensor) and v.dtype == torch.bool for v in values)


def _is_inference_dropout(target: Target, args: Argument) -> bool:
    names = [argument.name for argument in target._schema.arguments]
    at = names.index("train") if "train" in names else len(args)
    return len(args) > at and args[at] is False
