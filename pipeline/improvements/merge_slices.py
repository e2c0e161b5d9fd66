"""merge_slices: run equal chains of operators on adjacent slices once (the rotary embeddings of queries and keys)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from attrs import frozen

from pipeline.aten.op_predicates import is_pointwise
from pipeline.aten.traits import CONTRACTIONS, Kind, has_explicit_sizes, op_kind
from pipeline.aten.types import Argument
from pipeline.improvements.push_down_slices import argument_row_dims
from pipeline.improvements.rewriting import Node, Rewriting, argument, aten, improvement, is_output, rank_of, source_of

MOVES = (Kind.RESHAPES, Kind.SQUEEZES, Kind.TRANSPOSES, Kind.REPEATS, Kind.SELECTS, Kind.MIXES, Kind.WRITES)
BEHIND = frozenset(CONTRACTIONS + MOVES)
"""The kinds of operators that may read a chain's results: TensorRT fuses none of them into the preceding kernel."""


@improvement(after="merge_head_views")
def merge_slices(rewriting: Rewriting) -> None:
    """Compute equal chains of operators on two adjacent slices of a tensor once, and slice the result.

    The rotary embeddings of queries and keys from one projection are such chains. A decoder step of a Llama-like model
    saves a kernel in each layer: the kernel that writes keys into the cache also rotates the queries. A chain must end
    where a kernel ends, before a matmul, a view or a write: merging half of a chain would add a kernel.
    """
    for node in list(rewriting.graph.nodes):
        slices = [] if node._erased else sorted(_slices_along_one_dim(node), key=lambda each: each.start)
        for one, other in pairwise(slices):
            if one.stop == other.start and not one.node._erased:
                _merge_chains(rewriting, node, one, other)


@frozen
class _Slice:
    """The slice ``[start, stop)`` along a dim, which ``node`` takes of its input."""

    node: Node
    dim: int
    start: int
    stop: int


def _slices_along_one_dim(source: Node) -> Iterator[_Slice]:
    """Yield the slices of ``source`` with constant bounds along one dim: the dim of the first slice that is found."""
    found: int | None = None
    for user in source.users:
        if user.target is not aten.slice.Tensor or user.args[0] is not source or argument(user, "step") != 1:
            continue
        dim, start, stop = argument(user, "dim") % rank_of(source), argument(user, "start") or 0, argument(user, "end")
        size = source.meta["val"].shape[dim]
        known = type(size) is int and type(start) is int and (stop is None or type(stop) is int)
        if known and found in (None, dim):
            start, stop, _ = slice(start, stop).indices(size)
            found = dim
            yield _Slice(user, dim, start, stop)


class _ChainPair:
    """Two equal chains of operators on two slices: pairs of corresponding nodes, and the sliced dim in each node."""

    def __init__(self, one: _Slice, other: _Slice) -> None:
        self.pairs: dict[Node, Node] = {one.node: other.node}
        self.dims: dict[Node, int] = {one.node: one.dim}
        waiting = set(one.node.users)
        while waiting:
            node = min(waiting)
            waiting.remove(node)
            dim = self._result_row_dim(node, self.dims)
            partner = None if dim is None or is_output(node) else self._find_counterpart(node, dim)
            if dim is not None and partner is not None:
                self.pairs[node], self.dims[node] = partner, dim
                waiting |= set(node.users)

    def _find_counterpart(self, node: Node, row_dim: int) -> Node | None:
        """Return the node in the other slice's chain that computes the same as ``node`` does in its chain, along the
        same ``row_dim``; None if there is none."""
        source = next(self.pairs[n] for n in node.all_input_nodes if n in self.pairs)
        theirs = {partner: self.dims[own] for own, partner in self.pairs.items()}
        for reader in source.users:
            new = reader not in theirs and reader is not node and not is_output(reader)
            if new and self._computes_same(node, reader, row_dim) and self._result_row_dim(reader, theirs) == row_dim:
                return reader
        return None

    def _result_row_dim(self, node: Node, row_dims: Mapping[Node, int]) -> int | None:
        """Return the dim of a node's result of which row i needs only row i of the inputs, along the dims that
        ``row_dims`` has for them. None if there is no such dim."""
        if not isinstance(node.meta.get("val"), torch.Tensor) or any(isinstance(v, Node) for v in node.kwargs.values()):
            return None
        if node.target is aten.cat.default:
            parts: Any = node.args[0]
            found = {row_dims.get(part) for part in parts}
            dim = found.pop()
            return dim if not found and dim != argument(node, "dim") % rank_of(node) else None
        if node.target is aten.slice.Tensor and row_dims.get(source_of(node)) == argument(node, "dim") % rank_of(node):
            return None  # all rows of one slice are not all rows of both
        own = {i: row_dims[x] for i, x in enumerate(node.args) if isinstance(x, Node) and x in row_dims}
        return next((dim for dim in range(rank_of(node)) if argument_row_dims(node, dim) == own), None) if own else None

    def _computes_same(self, node: Node, other: Node, row_dim: int) -> bool:
        """Return whether two nodes, one of each chain, compute the same, except for their sizes along ``row_dim``."""
        if node.target is not other.target or node.kwargs != other.kwargs or len(node.args) != len(other.args):
            return False
        given, others = list(node.args), list(other.args)
        if has_explicit_sizes(node.target):
            a, b = list(given.pop(1)), list(others.pop(1))  # type: ignore[arg-type]
            if len(a) != len(b) or a[:row_dim] + a[row_dim + 1 :] != b[:row_dim] + b[row_dim + 1 :]:
                return False
        return all(map(self._are_corresponding, given, others))

    def _are_corresponding(self, x: Argument, y: Argument) -> bool:
        """Return whether arguments are equal numbers, corresponding nodes of the chains, the same node, or lists of
        such."""
        if isinstance(x, list | tuple):
            return isinstance(y, list | tuple) and len(x) == len(y) and all(map(self._are_corresponding, x, y))
        if isinstance(x, Node):
            return self.pairs.get(x, x) is y
        return type(x) is type(y) and x == y

    def readers_outside(self, pair: tuple[Node, Node]) -> list[Node]:
        """Return the nodes outside both chains that read a node of this pair."""
        inside = {*self.pairs, *self.pairs.values()}
        return [user for node in pair for user in node.users if user not in inside]

    @property
    def pairs_read_outside(self) -> list[tuple[Node, Node]]:
        """Return the pairs (node, counterpart in the other chain), without the slices, that outside nodes read."""
        return list(filter(self.readers_outside, list(self.pairs.items())[1:]))

    @property
    def saves_time(self) -> bool:
        """Return whether merging the chains saves time: they contain elementwise operators, and all outside readers of
        their results are operators at which TensorRT begins another kernel, such as matmuls."""
        readers = [reader for pair in self.pairs_read_outside for reader in self.readers_outside(pair)]
        begin_kernels = all(op_kind(reader.target) in BEHIND for reader in readers)
        return bool(readers) and begin_kernels and any(map(is_pointwise, self.pairs))


def _merge_chains(rewriting: Rewriting, source: Node, one: _Slice, other: _Slice) -> None:
    """Replace equal chains of operators on two adjacent slices of ``source`` by one chain on both slices."""
    chain = _ChainPair(one, other)
    if not chain.saves_time:
        return
    both: dict[Node, Node] = {}
    for node, partner in chain.pairs.items():
        before = min(node, partner)
        if node is one.node:
            cut = (source, one.dim, one.start, other.stop)
            both[node] = rewriting.create(aten.slice.Tensor, cut, {}, before)
            continue
        arguments: list[Any] = [torch.fx.node.map_arg(x, lambda n: both.get(n, n)) for x in node.args]
        if has_explicit_sizes(node.target):
            dim, sizes = chain.dims[node], list(arguments[1])
            sizes[dim] = node.meta["val"].shape[dim] + partner.meta["val"].shape[dim]
            arguments[1] = sizes
        both[node] = rewriting.create(node.target, tuple(arguments), dict(node.kwargs), before)
    parts = []
    for node, partner in chain.pairs_read_outside:
        dim, first = chain.dims[node], node.meta["val"].shape[chain.dims[node]]
        last = first + partner.meta["val"].shape[dim]
        for old, start, stop in ((node, 0, first), (partner, first, last)):
            parts.append((old, rewriting.create(aten.slice.Tensor, (both[node], dim, start, stop), {}, old)))
    if all(map(rewriting.accepted, [*both.values(), *(part for _, part in parts)])):
        for old, part in parts:
            rewriting.replace(old, part)
    for node in [*(part for _, part in parts), *reversed(both.values())]:
        rewriting.erase(node)
