"""Alias analysis: find the tensors that share memory with a tensor that is written to."""

from __future__ import annotations

import operator

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from pipeline.aten.op_predicates import LIFTS, mutates_argument
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument, Node, aten
from pipeline.capture.fake_tensors import ignore_new_symbols, suppress_guards
from pipeline.capture.views import MULTI_VIEW_OPERATORS, View, describe_view_by_rule
from pipeline.errors import PipelineError
from pipeline.shapes.environment import shape_of

NEVER_RETURN_INPUT = (
    *(Kind.PROJECTS, Kind.CONVOLVES, Kind.ATTENDS, Kind.RECURS),
    *(Kind.NORMALIZES, Kind.SCALES, Kind.SOFTENS, Kind.RESAMPLES),
)
"""Kinds of composite operators that never return their input; other composites may, even if their schema denies it."""


class UnknownAliasError(PipelineError):
    """Raised if a graph does not determine which tensors share the memory that an operator writes to."""

    def __init__(self, node: object) -> None:
        super().__init__(f"{node} shares memory in a way that no rule covers")


def may_alias_input(node: Node) -> bool:
    """Return whether a node's result may share memory with one of its inputs."""
    target = node.target
    if node.op != "call_function":
        return True
    if target in LIFTS or not is_tensor(node):
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    if any(r.alias_info is not None for r in target._schema.returns):
        return True
    return _is_composite(target) and op_kind(target) not in NEVER_RETURN_INPUT and target is not aten.matmul.default


def nodes_in_written_memory(graph: torch.fx.Graph) -> set[Node]:
    """Return the nodes that may share memory with a node that is written to."""
    shares: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    found = set(filter(mutates_argument, graph.nodes))
    for node in graph.nodes:
        if node in found or (node.op == "call_function" and may_alias_input(node)):
            for source in filter(is_tensor, node.all_input_nodes):
                shares[source].append(node)
                shares[node].append(source)
    waiting = list(found)
    while waiting:
        near = set(shares[waiting.pop()]) - found
        found |= near
        waiting += near
    return found


def is_tensor(node: Node) -> bool:
    """Return whether a node's value is a tensor or a sequence of tensors."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor | tuple | list)


def describe_as_view(node: Node, mode: FakeTensorMode) -> View | None:
    """Describe a node as a view of another node; return None if the node has memory of its own.

    Raises:
        UnknownAliasError: the node is a view, but this package has no rule for views by the node's operator.
    """
    if node.op != "call_function" or not may_alias_input(node) or node.target in MULTI_VIEW_OPERATORS:
        return None
    known = describe_view_by_rule(node)
    if node.target is operator.getitem and known is None and node.args[0].target in MULTI_VIEW_OPERATORS:  # type: ignore[union-attr]
        raise UnknownAliasError(node)
    if node.target is operator.getitem or (known is not None and not _is_composite(node.target)):  # type: ignore[arg-type]
        return known
    source, made = _aliased_input_and_result(node, mode)
    if source is None:
        return None
    if known is None and not _has_same_layout(made, source.meta["val"]):
        raise UnknownAliasError(node)
    return known or View(node, source, aten.alias.default, ())


def _is_composite(target: torch._ops.OpOverload) -> bool:
    """Return whether torch implements an operator by calls of other operators, for every device and for autograd."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")


def _aliased_input_and_result(node: Node, mode: FakeTensorMode) -> tuple[Node | None, Argument]:
    """Run a node's operator on fake tensors; return the input with which the result shares memory (None if there is
    none), and the result."""
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    with torch.no_grad(), suppress_guards(mode), ignore_new_symbols(mode):
        try:  # in C++, as eager: torch's Python kernel of dropout copies an input that eager returns itself
            made = node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, TypeError) as error:  # a kernel that takes no sizes that vary
            raise UnknownAliasError(node) from error
    mine = {storage_id(t) for t in tree_leaves(made) if isinstance(t, torch.Tensor)} - {None}
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    source = next((n for n in tensors if storage_id(n.meta["val"]) in mine), None)
    if source is not None and not isinstance(made, torch.Tensor):
        raise UnknownAliasError(node)
    return source, made


def _has_same_layout(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors that share memory have the same dtype, offset, sizes and strides."""
    strides = [tuple(map(str, t.stride())) for t in (tensor, other)]
    same = strides[0] == strides[1] and str(tensor.storage_offset()) == str(other.storage_offset())
    return same and tensor.dtype == other.dtype and shape_of(tensor) == shape_of(other)


def storage_id(tensor: torch.Tensor) -> int | None:
    """Return an id of a tensor's storage; None for sparse tensors and wrappers of ``torch.func``, which have none."""
    has_storage = tensor.layout == torch.strided and not is_functorch_wrapped_tensor(tensor)
    return int(tensor.untyped_storage()._cdata) if has_storage else None
