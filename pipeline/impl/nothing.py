"""Keep what is computed of one size from loops over another that a call may leave empty.

TensorRT-RTX computes a tensor that is broadcast in the kernel of the layer that broadcasts it, and writes it there for
others, in a loop over the larger tensor: if that has no elements in a call, nobody writes it (docs/tensorrt.md,
"Numbers").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.impl import base
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.blocks import block, fact
from pipeline.impl.shape import bounds_of, expression
from pipeline.network.net import Net
from pipeline.shapes.environment import Expr, Symbols, bounds, shape_of
from pipeline.trt import CAPABILITIES, trt


def that_leave_something(nodes: Iterable[torch.fx.Node], outputs: Set[str], ranges: Symbols) -> frozenset[str]:
    """The symbols of inputs that may leave tensors of these nodes, one segment's, empty beside others: where nodes
    compute something that has elements all the same, for a node of which none are left, and for an output. Most ranges
    begin at 0 because nobody said more, and a call without elements leaves nothing to compute."""
    there = {node.name: node for node in nodes}
    names = [name for name, each in ranges.items() if each.min < 1 and not name.startswith("u")]
    shapes = {name: _shapes(node.meta.get("val")) for name, node in there.items()} if names else {}
    return frozenset(name for name in names if _leaves_something(there, shapes, outputs, name, ranges))


def _shapes(value: object) -> list[tuple[Expr, ...]]:
    if isinstance(value, torch.Tensor):
        return [shape_of(value)]
    return [shape for each in value for shape in _shapes(each)] if isinstance(value, tuple | list) else []


def _leaves_something(
    nodes: Mapping[str, torch.fx.Node],
    shapes: Mapping[str, Sequence[Sequence[Expr]]],
    outputs: Set[str],
    symbol: str,
    ranges: Symbols,
) -> bool:
    """Whether a node has elements, if there are none of a symbol, and so have nodes from it to an output, and none one
    that reads it or one of these."""
    empty = {
        name
        for name, each in shapes.items()
        if each and all(any(_may_be_none(size, symbol, ranges) for size in shape) for shape in each)
    }
    leaving, read = set[str](), set[str]()
    for name, node in reversed(list(nodes.items())):
        if name in empty or not shapes[name]:
            continue
        users = {user.name for user in node.users}
        if users & (empty | read):
            read.add(name)
        if name in outputs or users & leaving:
            leaving.add(name)
        if name in read and name in leaving:
            return True
    return False


def _may_be_none(size: Expr, symbol: str, ranges: Symbols) -> bool:
    if isinstance(size, int) or all(each.name != symbol for each in size.free_symbols):
        return False
    return all(each.name in ranges for each in size.free_symbols) and bounds(size, ranges).min < 1


@fact
def may_be_none(net: Net, size: Size) -> bool:
    """Whether a call may have none of a size that the program knows."""
    return bounds_of(net, expression(size))[0] < 1


@fact
def may_leave_none(net: Net, size: Size) -> bool:
    """Whether data decides a size, or an input has it and leaves something (`that_leave_something`), and there may be
    none; an intermediate's size is unknown (None), and may be any such."""
    if size is None:
        data = any(name.startswith("u") and each.min < 1 for name, each in net.ctx.ranges.items())
        return data or bool(net.ctx.leaving)
    expr = expression(size)
    decides = free_unbacked_symbols(expr) or any(s.name in net.ctx.leaving for s in expr.free_symbols)
    return bool(decides) and may_be_none(net, size)


@block
def written_first(net: Net, values: Sequence[Value], tensors: Sequence[ITensor]) -> tuple[ITensor, ...]:
    """The tensors of one rank that a layer broadcasts, made of these values: each that is broadcast over a dim that a
    call may leave empty, through a layer of its own. A running sum along a dim of size 1 changes nothing, and is no
    part of other kernels."""
    if not CAPABILITIES.cumulative:
        return tuple(tensors)
    rank = max(map(base.rank, tensors))
    sizes = [[*[1] * (rank - base.rank(value)), *_sizes(net, value)] for value in values]
    return tuple(
        _alone(net, tensor, places[0])
        if isinstance(value, trt.ITensor) and (places := [d for d in range(rank) if _is_over_nothing(net, sizes, i, d)])
        else tensor
        for i, (value, tensor) in enumerate(zip(values, tensors, strict=True))
    )


def _sizes(net: Net, value: Value) -> list[Size]:
    return base.known_sizes(net, value) if isinstance(value, trt.ITensor | torch.Tensor) else []


def _is_over_nothing(net: Net, sizes: Sequence[Sequence[Size]], which: int, dim: int) -> bool:
    others = [each[dim] for i, each in enumerate(sizes) if i != which]
    return sizes[which][dim] == 1 and any(
        size is not None and size != 1 and may_leave_none(net, size) for size in others
    )


def _alone(net: Net, x: ITensor, dim: int) -> ITensor:
    dtype = base.dtype_of(x)
    summed = base.cast(net, x, torch.int32 if dtype == torch.bool else dtype)
    axis = base.constant(net, np.array(dim, dtype=np.int64))
    layer = net.add("cumulative", summed, axis, trt.CumulativeOperation.SUM, False, False)
    return base.cast(net, layer.get_output(0), dtype)
