"""Find what TensorRT computes of the zeros that it lengthens the sum of a matmul with (`padded-zeros`).

Where a product sums over an odd number of elements, TensorRT-RTX adds a zero to each row of both factors. It adds them
before elementwise layers of one tensor, and so the product sums ``exp(0) * cos(0)`` for
``x.exp() @ y.cos()``, and ``log(0) * 0``, which is NaN, for a linear layer of ``x.log()``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import torch
from torch import Tensor
from torch.fx.node import map_arg

from pipeline.aten.op_predicates import is_pointwise, moves
from pipeline.aten.traits import Does, does
from pipeline.quirks.parts import Part, Place
from pipeline.quirks.reduction_fusion import ADDING

SOME: Final = 0.7
"""Stands for each element of a constant that elementwise layers read."""
WITHIN: Final = 32
"""Elementwise operators in front of a product that are looked at."""


def places(part: Part) -> Iterator[Place]:
    """The matmuls that would sum something else than zeros for the zeros that are added to their factors."""
    for node in part.nodes:
        if factors := _factors(node):
            made = [of_zeros(x, part.inside, part.constants) for x in factors]
            if does(node.target) is Does.RECURS:
                made.append({0.0})
            if any(math.prod(each) != 0 for each in itertools.product(*made)):
                yield "converter", node.name, ()


def _factors(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors that a node multiplies; for a recurrent layer, its input, which is multiplied by weights."""
    if does(node.target) is Does.RECURS:
        return node.all_input_nodes[:1]
    if does(node.target) not in (Does.MULTIPLIES, Does.PROJECTS):
        return []
    added = next((place for target, place in ADDING.items() if target is node.target), None)
    return [x for i, x in enumerate(node.args) if i != added and isinstance(x, torch.fx.Node)]


def of_zeros(node: torch.fx.Node, inside: Set[str] = frozenset(), constants: Set[str] = frozenset()) -> set[float]:
    """What the elementwise operators in front of a node, and its own, may make of zeros: these may be added to each
    tensor from which alone they compute the node, to itself, or to what it is read from.

    inside: the names of the nodes that are computed in its network; empty for all. constants: the names of those that
    the network holds.
    """
    chain = sorted(_elementwise(node, inside))
    if len(chain) > WITHIN:
        return {0.0, math.nan}
    read = {x for each in chain for x in _read(each) if not (x.name in constants or _is_made(x))}
    try:
        found = [_from(start, chain, constants) for start in sorted(read | {node})]
        return {float(values[node]) for values in found if node in values}
    except Exception:
        return {0.0, math.nan}


def _from(start: torch.fx.Node, chain: Sequence[torch.fx.Node], constants: Set[str]) -> dict[torch.fx.Node, Tensor]:
    """What operators compute of a zero at one place, those that need no other tensor."""
    values = {start: _scalar(start, 0)}
    for node in chain:
        fixed = (x.name in constants or _is_made(x) for x in _read(node) if x not in values)
        if node is not start and all(fixed) and any(x in values for x in _read(node)):
            values[node] = _value(node, values)
    return values


def _elementwise(node: torch.fx.Node, inside: Set[str]) -> set[torch.fx.Node]:
    """The elementwise operators and views that lead to a node, and it."""
    found, waiting = set[torch.fx.Node](), [node]
    while waiting and len(found) <= WITHIN:
        each = waiting.pop()
        is_inside = each.op == "call_function" and (not inside or each.name in inside)
        if each not in found and is_inside and (is_pointwise(each) or moves(each)):
            found.add(each)
            waiting += _read(each)
    return found


def _read(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors whose elements a node reads."""
    return [x for x in node.all_input_nodes if isinstance(x.meta.get("val"), Tensor)]


def _scalar(node: torch.fx.Node, value: float) -> Tensor:
    return torch.full((), value, dtype=node.meta["val"].dtype)


def _value(node: torch.fx.Node, values: Mapping[torch.fx.Node, Tensor]) -> Tensor:
    if moves(node):
        return values[_read(node)[0]].to(node.meta["val"].dtype)
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda x: values[x] if x in values else _element(x))
    assert callable(node.target)
    return torch.as_tensor(node.target(*args, **kwargs))


def _is_made(node: torch.fx.Node) -> bool:
    """Whether a node makes a tensor of numbers."""
    return node.op == "call_function" and not node.all_input_nodes


def _element(node: torch.fx.Node) -> Tensor:
    """An element of a constant, or of a tensor that is filled with a number."""
    number = node.args[-1] if _is_made(node) and node.args else SOME
    return _scalar(node, number if isinstance(number, int | float) else SOME)
