"""Recognise writes of consecutive rows (``index_copy``, ``index_put``, ``slice_scatter``), and find the first index.

That index is known if the graph shows that the written indices count up from it."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from attrs import frozen

from pipeline.aten.arguments import argument, bind
from pipeline.aten.graphs import Steps, evaluate_recursively
from pipeline.aten.traits import Kind, op_kind
from pipeline.improvements.rewriting import Argument, Node, Rewriting, aten, both_orders, dtype_of, rank_of
from pipeline.program import READS_DATA
from pipeline.shapes.environment import Expr, Shape, expression, shape_of

Start: TypeAlias = "Node | int"
"""The position of the first written row: a tensor whose last dim is 1 or absent, a size, or a number."""

INTS = (torch.int64, torch.int32)
RANGES = (aten.arange.default, aten.arange.start, aten.arange.start_step)
ADDS = (aten.add.Tensor, aten.add.Scalar)
PUTS = (aten.index_put.default, aten._unsafe_index_put.default)


def first_position_of_rows(rewriting: Rewriting, index: Node) -> Start | None:
    """Return ``start`` if each row of an index provably is ``start + arange(n)``, or one element; else None."""
    shape = shape_of(index.meta["val"])
    if not shape or shape[-1] == 1:
        return index
    return evaluate_recursively(_start_of_counting_rows, rewriting, index)


def _start_of_counting_rows(rewriting: Rewriting, node: Any) -> Steps[Start | None]:
    """Return the first element of each row of a tensor whose rows provably count up by 1; None for other tensors."""
    if not isinstance(node, Node):
        return None
    if node.op == "placeholder":
        value = rewriting.known_value(node)
        if value is None or value.dtype not in INTS or not value.numel():
            return None
        first = int(value.flatten()[0])
        counted = first + torch.arange(value.shape[-1]).expand(value.shape)
        return first if torch.equal(value.to(torch.int64), counted) else None
    found: Start | None = None
    if node.target in RANGES:
        step = argument(node, "step") if node.target is aten.arange.start_step else 1
        start = 0 if node.target is aten.arange.default else argument(node, "start")
        plain = step == 1 and (isinstance(start, Node) or type(start) is int)
        return start if plain and dtype_of(node) in INTS else None
    if node.target in ADDS:
        found = yield _start_of_sum, rewriting, node
        return found
    kind = op_kind(node.target)
    same = kind is Kind.COPIES or (kind is Kind.CASTS and dtype_of(node) in INTS)
    if same or (kind in (Kind.SQUEEZES, Kind.RESHAPES, Kind.SELECTS) and _reshapes_one_row(node)):
        found = yield _start_of_counting_rows, rewriting, node.args[0]
    return found


def _start_of_sum(rewriting: Rewriting, node: Node) -> Steps[Start | None]:
    """Return, through `evaluate_recursively`, ``offset`` if a node is ``arange(n) + offset``; else None."""
    if argument(node, "alpha") != 1 or dtype_of(node) not in INTS:
        return None
    for counting, other in both_orders(node):
        if not _can_be_start(other):
            continue
        start = yield _start_of_counting_rows, rewriting, counting
        if start is not None:
            return other if start == 0 else None
    return None


def _can_be_start(value: Any) -> bool:
    """Return whether a value can be ``start`` in ``start + arange(n)``: a number, or a tensor [] or [..., 1]."""
    if dtype_of(value) is None:
        return isinstance(value, Node) or type(value) is int
    return shape_of(value.meta["val"])[-1:] in ((), (1,))


def _reshapes_one_row(node: Node) -> bool:
    """Return whether a node only adds or removes dims of size 1 before the last dim, as from [1, L] to [L]."""
    source = node.args[0]
    if not isinstance(source, Node) or not rank_of(source) or not rank_of(node):
        return False
    before, after = shape_of(source.meta["val"]), shape_of(node.meta["val"])
    return before[-1] == after[-1] and all(size == 1 for size in (*before[:-1], *after[:-1]))


@frozen
class Write:
    """A write of rows to a tensor along ``dim``. ``update``: the rows, in the tensor's shape except for the size of
    ``dim``. ``starts``: the position of the first row: [1], or [B] if it differs by index of dim 0."""

    dim: int
    starts: Node
    update: Node


def match_write(rewriting: Rewriting, node: Node) -> Write | None:
    """Match a node as a write of consecutive rows to its first argument; return None if they may not be consecutive."""
    if node.target is aten.slice_scatter.default:
        found = _match_slice_write(rewriting, node)
    elif node.target in (aten.index_copy.default, *PUTS):
        found = _match_index_write(rewriting, node)
    else:
        return None
    x: Any = node.args[0]
    if found is None or dtype_of(found.update) != dtype_of(x):
        return None
    due, own = shape_of(x.meta["val"]), shape_of(found.update.meta["val"])
    same = len(due) == len(own) and all(a == b for i, (a, b) in enumerate(zip(due, own, strict=True)) if i != found.dim)
    return found if same else None


def match_index_copy(node: Node) -> tuple[int, Node, Node] | None:
    """Match a node that writes rows like ``index_copy``: return dim, index [L] and source; None for other nodes."""
    found = _match_single_index(node)
    if found is None:
        return None
    dim, index, values = found
    return found if shape_of(values.meta["val"]) == _selected_shape(node.args[0], dim, index) else None


def _match_single_index(node: Node) -> tuple[int, Node, Node] | None:
    """Match a node that writes with a single index tensor: return dim, index [L] and values; None for other nodes."""
    if node.target is aten.index_copy.default:
        x, dim, index, source = bind(node.target, node.args, node.kwargs)
        return (dim % rank_of(x), index, source) if rank_of(x) and rank_of(index) == 1 else None
    named, values = _match_index_put(node)
    if len(named) != 1:
        return None
    ((dim, index),) = named.items()
    return (dim, index, values) if rank_of(index) == 1 else None


def _match_index_put(node: Node) -> tuple[dict[int, Node], Node]:
    """Return ({dim: index}, values) of an ``index_put`` without accumulation; for other nodes, {} and any node."""
    if node.target not in PUTS:
        return {}, node
    _, indices, values, accumulate = bind(node.target, node.args, node.kwargs)
    named = {dim: index for dim, index in enumerate(indices) if index is not None}
    plain = not accumulate and all(dtype_of(index) in INTS for index in named.values())
    return named if plain else {}, values


def _match_slice_write(rewriting: Rewriting, node: Node) -> Write | None:
    """Match a ``slice_scatter`` as a write of consecutive rows; return None if its step is not 1."""
    x, source, dim, start, end, step = bind(node.target, node.args, node.kwargs)
    dim, start = dim % rank_of(x), 0 if start is None else start
    size = shape_of(x.meta["val"])[dim]
    if step != 1 or not isinstance(size, int):
        return None
    start = start + size if type(start) is int and start < 0 else start
    end = size if end is None or (type(end) is int and end > size) else end
    length = _as_expression(end) - _as_expression(start)
    update = _skip_views_and_expansions(source, dim, length)
    fits = shape_of(update.meta["val"])[dim] == length
    return Write(dim, _start_as_vector(rewriting, start, node), update) if fits else None


def _skip_views_and_expansions(source: Node, dim: int, length: Expr) -> Node:
    """Return the rows that a slice write copies from ``source``: the node before copies, expansions and views, as long
    as it has ``length`` rows along ``dim`` and the other sizes of ``source``."""
    while True:
        inner = source.args[1] if source.target is aten.copy.default else source.args[0] if source.args else None
        known = source.target in (aten.copy.default, aten.expand.default, aten.view.default)
        if not known or not isinstance(inner, Node) or not isinstance(inner.meta.get("val"), torch.Tensor):
            return source
        before, after = shape_of(inner.meta["val"]), shape_of(source.meta["val"])
        same = (*before[:dim], *before[dim + 1 :]) == (*after[:dim], *after[dim + 1 :])
        if not same or len(before) != len(after) or before[dim] != length or dtype_of(inner) != dtype_of(source):
            return source
        source = inner


def _match_index_write(rewriting: Rewriting, node: Node) -> Write | None:
    """Match ``index_copy`` or ``index_put`` as a write of consecutive rows; None if they may not be consecutive."""
    found = _match_single_index(node)
    if found is None:
        return _match_batch_write(rewriting, node)
    dim, index, values = found
    start = first_position_of_rows(rewriting, index)
    if start is None:
        return None
    if node.target is aten.index_copy.default:
        return Write(dim, _start_as_vector(rewriting, start, node), values)
    shape, update = _selected_shape(node.args[0], dim, index), values
    if shape_of(values.meta["val"]) != shape and all(isinstance(size, int) for size in shape):
        update = rewriting.create(aten.expand.default, (values, list(shape)), {}, node)
    return Write(dim, _nonnegative_start(rewriting, start, index, dim, node), update)


def _selected_shape(x: Argument, dim: int, index: Node) -> Shape:
    """Return the shape of the rows of ``x`` that an index [L] selects along a dim."""
    shape = shape_of(x.meta["val"])
    return (*shape[:dim], *shape_of(index.meta["val"]), *shape[dim + 1 :])


def _match_batch_write(rewriting: Rewriting, node: Node) -> Write | None:
    """Match a write with a separate index [B] or [B, L] for every batch; return None for other nodes."""
    x: Argument = node.args[0]
    named, values = _match_index_put(node)
    if len(named) != 2 or 0 not in named:
        return None
    (_, batches), (dim, index) = named.items()
    if not _selects_every_batch(rewriting, batches, shape_of(x.meta["val"])[0]) or rank_of(index) != rank_of(batches):
        return None
    rank = rank_of(x)
    single = rank_of(index) == 1
    if rank_of(values) != rank - single:
        return None
    if single:
        index = rewriting.create(aten.unsqueeze.default, (index, 1), {}, node)
        update = rewriting.create(aten.unsqueeze.default, (values, dim), {}, node)
    else:
        order = [0, *range(2, dim + 1), 1, *range(dim + 1, rank)]
        update = rewriting.create(aten.permute.default, (values, order), {}, node)
    start = first_position_of_rows(rewriting, index)
    return None if start is None else Write(dim, _nonnegative_start(rewriting, start, index, dim, node), update)


def _selects_every_batch(rewriting: Rewriting, index: Node, batch_size: Expr) -> bool:
    """Return whether an index [B] or [B, 1] counts all batches in order."""
    shape = shape_of(index.meta["val"])
    if shape not in ((batch_size,), (batch_size, 1)):
        return False
    value = rewriting.known_value(index)
    if value is not None:
        return torch.equal(value.flatten().to(torch.int64), torch.arange(value.numel()))
    while index.target in (aten.unsqueeze.default, aten.view.default) and isinstance(index.args[0], Node):
        index = index.args[0]
    return shape_of(index.meta["val"]) == (batch_size,) and first_position_of_rows(rewriting, index) == 0


def _nonnegative_start(rewriting: Rewriting, start: Start, index: Node, dim: int, write: Node) -> Node:
    """Return ``start`` as a vector; if it is the write's own ``index``, resolve negative positions in ``dim``."""
    starts = _start_as_vector(rewriting, start, write)
    if start is not index:
        return starts
    create = rewriting.before(write)
    below = create(aten.lt.Scalar, starts, 0)
    from_end = create(aten.add.Scalar, starts, shape_of(write.meta["val"])[dim])
    return create(aten.where.self, below, from_end, starts)


def _start_as_vector(rewriting: Rewriting, start: Start, before: Node) -> Node:
    """Return a start position as a 1-D tensor."""
    if isinstance(start, Node) and start.target in READS_DATA and isinstance(start.args[0], Node):
        start = start.args[0]  # Python reads it from this very tensor
    if not isinstance(start, Node) or not isinstance(start.meta.get("val"), torch.Tensor):
        return rewriting.create(aten.full.default, ([1], start), {"dtype": torch.int64}, before)
    return start if rank_of(start) == 1 else rewriting.create(aten.view.default, (start, [-1]), {}, before)


def _as_expression(value: Any) -> Expr:
    """Return a size, given as a node or a number, as an int or a SymPy expression."""
    return expression(value.meta["val"]) if isinstance(value, Node) else expression(value)
