"""fuse_gelu: fuse the separate operators of GPT-2's GELU (tanh approximation) into one operator."""

from __future__ import annotations

import math

from pipeline.aten.types import Argument, Target
from pipeline.improvements.rewriting import Node, Rewriting, aten, both_orders, dtype_of, improvement, is_cast


@improvement(after="update_in_place")
def fuse_gelu(rewriting: Rewriting) -> None:
    """Replace GPT-2's ``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x³)))`` by one GELU operator."""
    for node in rewriting.nodes(aten.mul.Tensor):
        for half, other in both_orders(node):
            x = _operand_besides_number(rewriting, half, aten.mul.Tensor, 0.5)
            if x is not None and _is_tanh_factor_of_gelu(rewriting, other, _skip_casts(x)):
                given = rewriting.before(node).cast(x, dtype_of(node))
                if rewriting.offer(node, aten.gelu.default, (given,), {"approximate": "tanh"}) is not None:
                    break


def _is_tanh_factor_of_gelu(rewriting: Rewriting, node: object, x: Node) -> bool:
    """Return whether a node is ``1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x³))``."""
    tanh = _skip_casts(_operand_besides_number(rewriting, node, aten.add.Tensor, 1.0))
    if not _is_call_of(tanh, aten.tanh.default):
        return False
    inner = _skip_casts(_operand_besides_number(rewriting, tanh.args[0], aten.mul.Tensor, math.sqrt(2 / math.pi)))
    if not _is_call_of(inner, aten.add.Tensor) or inner.kwargs:
        return False
    factors = [b for a, b in both_orders(inner) if _skip_casts(a) is x]
    cubes = (_operand_besides_number(rewriting, b, aten.mul.Tensor, 0.044715) for b in factors)
    return any(_is_cube(_skip_casts(cube), x) for cube in cubes)


def _is_cube(node: Argument, x: Node) -> bool:
    if _is_call_of(node, aten.pow.Tensor_Scalar):
        return _skip_casts(node.args[0]) is x and node.args[1] == 3
    factors = [b for a, b in both_orders(node) if _skip_casts(a) is x] if _is_call_of(node, aten.mul.Tensor) else []
    return any(_is_call_of(b, aten.mul.Tensor) and all(_skip_casts(v) is x for v in b.args) for b in factors)


def _operand_besides_number(rewriting: Rewriting, node: object, target: Target, number: float) -> Argument:
    """Return the operand that a node adds to or multiplies by ``number``; None if the node does not match."""
    call = _skip_casts(node)
    if _is_call_of(call, target) and not call.kwargs:
        for a, b in both_orders(call):
            found = rewriting.known_number(b)
            if isinstance(a, Node) and found is not None and math.isclose(found, number, rel_tol=1e-3):
                return a
    return None


def _is_call_of(node: object, target: object) -> bool:
    return isinstance(node, Node) and node.target is target


def _skip_casts(node: object) -> Argument:
    """Return the input of a chain of casts between floating-point dtypes that ends at a node; other nodes unchanged."""
    while isinstance(node, Node) and is_cast(node):
        node = node.args[0]
    return node
