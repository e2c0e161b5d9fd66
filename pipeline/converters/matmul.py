"""Convert matmuls and linear layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.aten.arguments import bind
from pipeline.aten.traits import Does, does
from pipeline.converters.binding import converts
from pipeline.impl import base
from pipeline.impl import matmul as impl
from pipeline.impl.attention import first_row, not_alone
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net
from pipeline.quirks import matmul_neighbours
from pipeline.quirks.matmul_neighbours import PASSING

aten = torch.ops.aten


@converts(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, aten.matmul.default)
def matmul(net: Net, *factors: Value) -> ITensor:
    """matmul(Tensor self, Tensor other) -> Tensor"""
    a, b = _factors(net, factors)
    lone = _are_weights(net.node)
    if lone:
        a, lone = not_alone(net, base.tensor(net, a))
    result = impl.matmul(net, a, b)
    result = impl.transposed(net, result, matmul_neighbours.RESULT)
    return first_row(net, result) if lone else result


def _factors(net: Net, factors: Sequence[Value], first: int = 0) -> list[Value]:
    """Return the factors of a matmul, its arguments from ``first`` on; transposed ones are wrapped by
    `impl.transposed`."""
    node = net.node
    if node is None or does(node.target) is not Does.MULTIPLIES:
        return [*factors]
    rows = zip(factors, bind(node.target, node.args, node.kwargs)[first:], strict=False)
    return [impl.transposed(net, x, given.name) if isinstance(given, torch.fx.Node) else x for x, given in rows]


def _source(node: object) -> object:
    """Return the node behind reshapes, casts and repetitions."""
    while isinstance(node, torch.fx.Node) and does(node.target) in PASSING:
        node = node.args[0]
    return node


def _are_weights(product: torch.fx.Node | None) -> bool:
    """Return whether the first operand comes from a softmax, as in an attention's second matmul."""
    node = _source(product.args[0]) if product is not None and product.args else None
    return isinstance(node, torch.fx.Node) and does(node.target) is Does.SOFTENS


@converts(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def addmm(net: Net, *operands: Value) -> ITensor:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    summand, a, b, *coefficients = operands
    return impl.add_matmul(net, summand, *_factors(net, (a, b), 1), *coefficients)


@converts(aten.linear.default)
def linear(net: Net, input: Value, weight: Value, bias: Value | None) -> ITensor:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    return impl.linear(net, input, weight, bias)
