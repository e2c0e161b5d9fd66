"""norms_into_linears: compute a norm by root mean square in the linear layer that reads it, for engines of one row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import torch
from attrs import frozen

from pipeline.aten.arguments import argument
from pipeline.aten.rows import NORMED_LINEAR
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
    orders,
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
        if norm is None or not alike(norm.x, given) or not _is_gain(norm.gain, given):
            continue
        if all(map(rewriting.accepted, [node, *_calls_of(norm, given)])):
            constants = (norm.gain, node.args[1], argument(node, "bias"))
            rewriting.offer(node, NORMED_LINEAR, (norm.x, *constants, norm.eps, norm.rounds_first))


def _is_gain(gain: Node, x: Node) -> bool:
    """Whether a factor has a number for each of a row's."""
    value = gain.meta.get("val")
    return isinstance(value, torch.Tensor) and shape_of(value) == shape_of(x.meta["val"])[-1:]


def _calls_of(norm: Norm, node: Node) -> Iterator[Node]:
    """The calls that compute a norm, up to the one that returns it."""
    waiting, seen = [node], {norm.x, norm.gain}
    while waiting:
        each = waiting.pop()
        if each not in seen and each.op == "call_function":
            seen.add(each)
            waiting += each.all_input_nodes
            yield each


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
    for gain, quotient in orders(node):
        if rounds_first:
            rounded = isinstance(quotient, Node) and is_cast(quotient) and dtype_of(quotient) == dtype_of(node)
            quotient = quotient.args[0] if isinstance(quotient, Node) and rounded else None
        if not isinstance(gain, Node) or not isinstance(quotient, Node) or quotient.target is not aten.mul.Tensor:
            continue
        for factor, root in orders(quotient):
            x = _widened(factor) or factor
            is_tensor = isinstance(x, Node) and dtype_of(x) is not None
            eps = _root(rewriting, root, x) if is_tensor and dtype_of(quotient) == torch.float32 else None
            if isinstance(x, Node) and eps is not None:
                yield Norm(x, gain, eps, rounds_first)


def _widened(node: Argument) -> Node | None:
    """What is cast to float32."""
    given = node.args[0] if isinstance(node, Node) and is_cast(node) and dtype_of(node) == torch.float32 else None
    return given if isinstance(given, Node) else None


def _root(rewriting: Rewriting, node: Argument, x: Node) -> float | None:
    """The eps of ``rsqrt(mean(x32²) + eps)`` over the last dim."""
    total = node.args[0] if _calls(node, aten.rsqrt.default) else None
    if not _calls(total, aten.add.Tensor) or argument(total, "alpha") != 1:
        return None
    for mean, eps in orders(total):
        number = rewriting.number(eps)
        if number is not None and _calls(mean, aten.mean.dim) and _is_mean_square(mean, x):
            return number
    return None


def _is_mean_square(mean: Node, x: Node) -> bool:
    dims, square = argument(mean, "dim"), mean.args[0]
    last = list(dims or ()) in ([-1], [rank_of(x) - 1]) and argument(mean, "keepdim")
    last = last and argument(mean, "dtype") in (None, torch.float32)
    if _calls(square, aten.pow.Tensor_Scalar):
        return bool(last) and _widened(square.args[0]) is x and square.args[1] in (2, 2.0)
    return bool(last) and _calls(square, aten.mul.Tensor) and all(_widened(given) is x for given in square.args)


def _calls(node: Argument, target: object) -> TypeGuard[Node]:
    return isinstance(node, Node) and node.target is target
