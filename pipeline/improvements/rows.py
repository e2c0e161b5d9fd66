"""norms_into_linears and sums_into_linears: linear layers with what a decoder has before and behind them as one
operator, for engines of one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import torch
from attrs import frozen

from pipeline.aten.arguments import argument
from pipeline.aten.rows import LINEAR_ONTO, NORMED_LINEAR
from pipeline.aten.types import Argument
from pipeline.impl.elementwise import HALVES
from pipeline.improvements.rewriting import (
    Node,
    Rewriting,
    alike,
    aten,
    dtype_of,
    improvement,
    is_cast,
    only_reader,
    rank_of,
)
from pipeline.shapes.environment import shape_of


@frozen
class Norm:
    """A row divided by the root of its mean square, times a gain: ``rounds_first`` says when it is rounded."""

    x: Node
    gain: Node
    eps: float
    rounds_first: bool


@improvement
def norms_into_linears(rewriting: Rewriting) -> None:
    """Let a linear layer in halves that alone reads a norm by root mean square compute the norm, too."""
    for node in rewriting.nodes(aten.linear.default):
        given = node.args[0]
        if not isinstance(given, Node) or only_reader(given) is not node or dtype_of(given) not in HALVES:
            continue
        norm = _norm(rewriting, given)
        if norm is None or not alike(norm.x, given) or _sizes(norm.gain) != _sizes(given)[-1:]:
            continue
        if all(map(rewriting.accepted, [node, *_calls_of(norm, given)])):
            constants = (norm.gain, node.args[1], argument(node, "bias"))
            rewriting.offer(node, NORMED_LINEAR, (norm.x, *constants, norm.eps, norm.rounds_first))


@improvement
def sums_into_linears(rewriting: Rewriting) -> None:
    """Let a linear layer in halves whose result is only added to a tensor of its shape add it. What it is added to has
    a last dim of 1 there: as the network's input it can be read so."""
    for node in rewriting.nodes(aten.add.Tensor):
        if dtype_of(node) not in HALVES or argument(node, "alpha") != 1 or not rank_of(node):
            continue
        for other, linear in _orders(node):
            if _is_linear_of(linear, node) and isinstance(other, Node) and alike(other, linear):
                if rewriting.accepted(node) and rewriting.accepted(linear):
                    _added(rewriting, node, linear, other)
                break


def _sizes(node: Node) -> Sequence[object]:
    return shape_of(node.meta["val"])


def _calls_of(norm: Norm, node: Node) -> Iterator[Node]:
    """The calls that compute a norm, up to the one that returns it."""
    if node not in (norm.x, norm.gain) and node.op == "call_function":
        yield node
        for given in node.all_input_nodes:
            yield from _calls_of(norm, given)


def _added(rewriting: Rewriting, node: Node, linear: Node, other: Node) -> None:
    column = rewriting.create(aten.unsqueeze.default, (other, -1), {}, node)
    constants = (linear.args[1], argument(linear, "bias"))
    taken = rewriting.accepted(column) and rewriting.offer(node, LINEAR_ONTO, (linear.args[0], *constants, column))
    if not taken:
        rewriting.erase(column)


def _is_linear_of(linear: Argument, node: Node) -> TypeGuard[Node]:
    """Whether an operand is a linear layer that nothing but the sum reads."""
    return _calls(linear, aten.linear.default) and only_reader(linear) is node and alike(linear, node)


def _norm(rewriting: Rewriting, node: Node) -> Norm | None:
    """The norm that a node is the result of: torch's own, Llama's spelling of it, or Gemma's."""
    if node.target is aten.rms_norm.default:
        return _torch_norm(node)
    if node.target is aten.mul.Tensor:
        return next(_multiplied(rewriting, node, rounds_first=True), None)
    inner = node.args[0] if is_cast(node) else None
    if isinstance(inner, Node) and inner.target is aten.mul.Tensor and only_reader(inner) is node:
        return next(_multiplied(rewriting, inner, rounds_first=False), None)
    return None


def _torch_norm(node: Node) -> Norm | None:
    x, shape, gain, eps = (argument(node, name) for name in ("input", "normalized_shape", "weight", "eps"))
    if isinstance(gain, Node) and isinstance(eps, float) and len(shape) == 1:
        return Norm(x, gain, eps, rounds_first=False)
    return None


def _multiplied(rewriting: Rewriting, node: Node, *, rounds_first: bool) -> Iterator[Norm]:
    """``gain * (x32 * rsqrt(mean(x32²) + eps))``, in either order, with a cast to x's dtype before the gain or not."""
    for gain, quotient in _orders(node):
        if rounds_first:
            rounded = isinstance(quotient, Node) and is_cast(quotient) and dtype_of(quotient) == dtype_of(node)
            quotient = quotient.args[0] if isinstance(quotient, Node) and rounded else None
        if not isinstance(gain, Node) or not isinstance(quotient, Node) or quotient.target is not aten.mul.Tensor:
            continue
        for wide, root in _orders(quotient):
            is_wide = isinstance(wide, Node) and is_cast(wide) and dtype_of(wide) == torch.float32
            x = wide.args[0] if isinstance(wide, Node) and is_wide else None
            eps = _root(rewriting, root, wide) if isinstance(x, Node) and isinstance(wide, Node) else None
            if isinstance(x, Node) and eps is not None:
                yield Norm(x, gain, eps, rounds_first)


def _root(rewriting: Rewriting, node: Argument, wide: Node) -> float | None:
    """The eps of ``rsqrt(mean(wide²) + eps)`` over the last dim."""
    total = node.args[0] if _calls(node, aten.rsqrt.default) else None
    if not _calls(total, aten.add.Tensor) or argument(total, "alpha") != 1:
        return None
    for mean, eps in _orders(total):
        number = rewriting.number(eps)
        if number is not None and _calls(mean, aten.mean.dim) and _is_mean_square(mean, wide):
            return number
    return None


def _is_mean_square(mean: Node, wide: Node) -> bool:
    dims, square = argument(mean, "dim"), mean.args[0]
    last = list(dims or ()) in ([-1], [rank_of(wide) - 1]) and argument(mean, "keepdim")
    last = last and argument(mean, "dtype") in (None, torch.float32)
    if _calls(square, aten.pow.Tensor_Scalar):
        return bool(last) and square.args[0] is wide and square.args[1] in (2, 2.0)
    return bool(last) and _calls(square, aten.mul.Tensor) and all(given is wide for given in square.args)


def _calls(node: Argument, target: object) -> TypeGuard[Node]:
    return isinstance(node, Node) and node.target is target


def _orders(node: Node) -> Iterator[tuple[Argument, Argument]]:
    a, b = node.args[:2]
    return iter(((a, b), (b, a)))
