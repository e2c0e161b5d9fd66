"""Find matmuls whose results change if TensorRT pads the contracted dim with zeros (the bug `padded-zeros`).

TensorRT-RTX pads an odd contracted dim of both operands with a zero, before elementwise layers of one tensor. So it
adds ``exp(0) * cos(0)`` for ``x.exp() @ y.cos()``, and ``log(0) * 0``, which is NaN, for a linear layer of ``x.log()``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence, Set
from typing import Final

import torch
from torch import Tensor
from torch.fx.node import Node, map_arg

from pipeline.aten.op_predicates import is_pointwise, moves_elements
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Target
from pipeline.quirks.quirk import AffectedNode, SegmentNodes
from pipeline.quirks.reduction_fusion import ADDING

SOME: Final = 0.7
"""The number that stands for an unknown element of a constant in these evaluations."""
WITHIN: Final = 32
"""The maximum number of elementwise operators before a matmul that `values_at_padding` evaluates."""


def find_padded_matmuls(segment: SegmentNodes) -> Iterator[AffectedNode]:
    """Yield the matmuls whose result may change if TensorRT pads the contracted dim with zeros."""
    for node in segment.nodes:
        if factors := _matmul_operands(node):
            values = [values_at_padding(x, segment.names, segment.constants) for x in factors]
            if op_kind(node.target) is Kind.RECURS:
                values.append({0.0})
            if any(math.prod(each) != 0 for each in itertools.product(*values)):
                yield "converter", node.name, ()


def _matmul_operands(node: Node) -> list[Node]:
    """Return the operands that a matmul contracts, or a recurrent layer's input; empty for other operators."""
    if op_kind(node.target) is Kind.RECURS:
        return node.all_input_nodes[:1]
    if op_kind(node.target) not in (Kind.MULTIPLIES, Kind.PROJECTS):
        return []
    return [x for i, x in enumerate(node.args) if i != ADDING.get(node.target) and isinstance(x, Node)]


def values_at_padding(node: Node, inside: Set[str] = frozenset(), constants: Set[str] = frozenset()) -> set[float]:
    """Return the values that a matmul's operand may have where TensorRT pads it with 0: 0 if it pads ``node`` itself,
    or ``f(0)`` if it pads a tensor before elementwise operators ``f`` that compute the node.

    inside: the names of the nodes in the network; empty for all nodes. constants: the names of its constants.
    """
    chain = sorted(_elementwise_chain(node, inside))
    if len(chain) > WITHIN:
        return {0.0, math.nan}
    read = {x for each in chain for x in _tensor_inputs(each) if not (x.name in constants or _has_no_input(x))}
    try:
        found = [_evaluate_at_padding(start, chain, constants) for start in sorted(read | {node})]
        return {float(values[node]) for values in found if node in values}
    except Exception:
        return {0.0, math.nan}


def _evaluate_at_padding(start: Node, chain: Sequence[Node], constants: Set[str]) -> dict[Node, Tensor]:
    """Return the values of the chain's nodes that depend only on constants and ``start``, where ``start`` is 0."""
    values = {start: _scalar_with_dtype_of(start, 0)}
    for node in chain:
        read = _tensor_inputs(node)
        fixed = (x.name in constants or _has_no_input(x) for x in read if x not in values)
        if node is start or not all(fixed) or values.keys().isdisjoint(read):
            continue
        if moves_elements(node):
            values[node] = values[read[0]].to(node.meta["val"].dtype)
        else:
            given = node.args, dict(node.kwargs)
            args, kwargs = map_arg(given, lambda x: values[x] if x in values else _typical_element(x))
            target: Target = node.target
            values[node] = torch.as_tensor(target(*args, **kwargs))
    return values


def _elementwise_chain(node: Node, inside: Set[str]) -> set[Node]:
    """Return the chain of elementwise operators and views that computes a node, including the node."""
    found, waiting = set[Node](), [node]
    while waiting and len(found) <= WITHIN:
        each = waiting.pop()
        is_inside = each.op == "call_function" and (not inside or each.name in inside)
        if each not in found and is_inside and (is_pointwise(each) or moves_elements(each)):
            found.add(each)
            waiting += _tensor_inputs(each)
    return found


def _tensor_inputs(node: Node) -> list[Node]:
    """Return the tensors, not sizes or numbers, that a node reads."""
    return [x for x in node.all_input_nodes if isinstance(x.meta.get("val"), Tensor)]


def _scalar_with_dtype_of(node: Node, value: float) -> Tensor:
    return torch.full((), value, dtype=node.meta["val"].dtype)


def _has_no_input(node: Node) -> bool:
    return node.op == "call_function" and not node.all_input_nodes


def _typical_element(node: Node) -> Tensor:
    """Return a 0-d tensor that stands for all elements of a node when its reader is evaluated: the number that fills a
    node such as ``full``, or 0.7 (`SOME`) for a constant whose elements are unknown."""
    number = node.args[-1] if _has_no_input(node) and node.args else SOME
    return _scalar_with_dtype_of(node, number if isinstance(number, int | float) else SOME)
