"""Replace ``as_strided`` of contiguous tensors by views.

``as_strided`` indexes a tensor's memory, not its elements: applied to ``x.mT``, it reads the rows of ``x``. A tensor in
an engine may have another memory layout than in the example. So the view that replaces ``as_strided`` reads the tensor
that owns the memory (``x``), with its dims permuted to the order of the example's strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import sympy
import torch
from torch.fx.node import map_arg

from pipeline.aten.arguments import argument
from pipeline.aten.graphs import copy_node, graph_module
from pipeline.aten.naming import make_unique
from pipeline.aten.types import Argument, Node, aten
from pipeline.capture.aliases import may_alias_input, storage_id
from pipeline.errors import CaptureError, source_line_in
from pipeline.shapes.environment import expression, shape_of

AS_STRIDED: Final = (aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default)
"""The ``as_strided`` operators, whose last arguments are sizes, strides and a storage offset."""
HINT: Final = "use unfold() for windows of a tensor, or call contiguous() before as_strided"


def replace_as_strided(module: torch.fx.GraphModule, examples: Mapping[str, torch.Tensor]) -> torch.fx.GraphModule:
    """Return a copy of the module in which ``as_strided`` reads tensors whose elements are in memory order: ``x`` in
    place of ``x.mT`` or ``x[1:]``; the module itself if nothing changes. ``examples``: example tensors, by placeholder.

    Raises:
        CaptureError: ``as_strided`` may read memory whose contents no tensor of the graph contains.
    """
    _check_storage_offsets(module, examples)
    if not any(node.target in AS_STRIDED and not _has_contiguous_input(node) for node in module.graph.nodes):
        return module
    copy = _AsStridedRewriter({node.name for node in module.graph.nodes})
    for node in module.graph.nodes:
        copy.env[node] = copy.copy_node(node)
    return graph_module(module, copy.graph)


def _check_storage_offsets(module: torch.fx.GraphModule, examples: Mapping[str, torch.Tensor]) -> None:
    """Raise a `CaptureError` if ``as_strided`` has an offset into an input whose example has a storage offset."""
    parts = {name for name, example in examples.items() if example.layout == torch.strided and example.storage_offset()}
    memories = [_storage_key(node) for node in module.graph.nodes if node.op == "placeholder" and node.name in parts]
    for node in (n for n in module.graph.nodes if n.target in AS_STRIDED and argument(n, "storage_offset") is not None):
        if _storage_key(argument(node, "self")) in memories:
            raise _unknown_contents_error(node)


class _AsStridedRewriter:
    """Copies a graph, and replaces each ``as_strided`` node. ``names``: the old nodes' names; new nodes have others."""

    def __init__(self, names: set[str]) -> None:
        self.graph, self.names = torch.fx.Graph(), names
        self.env: dict[Node, Node] = {}

    def copy_node(self, node: Node) -> Node:
        """Copy a node. The copy of ``as_strided`` reads a tensor in memory order: ``x``, not its transpose ``x.mT``."""
        made = copy_node(node, self.graph, self.env.__getitem__)
        if node.target not in AS_STRIDED or _has_contiguous_input(node):
            return made
        source: Node = argument(node, "self")
        whole, dims = _node_covering_memory(source, node)
        with self.graph.inserting_before(made):
            row = self.append_permute(self.env[whole], dims, whole.meta["val"])
        given = {a.name: argument(node, a.name) for a in node.target._schema.arguments[1:]}
        if given["storage_offset"] is None:
            given["storage_offset"] = first = expression(source.meta["val"].storage_offset())
            if not isinstance(first, int):
                raise _unknown_contents_error(node)
        made.args, made.kwargs = (row, *map_arg(tuple(given.values()), self.env.__getitem__)), {}
        if node.target is not aten.as_strided_scatter.default:
            return made
        if whole is not source:
            raise _unknown_contents_error(node)
        made.name, made.meta["val"] = make_unique(node.name, self.names), row.meta["val"]
        return self.append_permute(made, [dims.index(d) for d in range(len(dims))], made.meta["val"])

    def append_permute(self, node: Node, dims: Sequence[int], example: torch.Tensor) -> Node:
        """Append a permutation of a node's dims to the graph; return ``node`` itself if ``dims`` are in order already.
        ``example``: the fake tensor of the node."""
        if list(dims) == sorted(dims):
            return node
        made = self.graph.call_function(aten.permute.default, (node, list(dims)))
        made.name, made.meta["val"] = make_unique("permute", self.names), example.permute(*dims)
        return made


def _has_contiguous_input(as_strided_node: Node) -> bool:
    """Return whether the input of an ``as_strided`` node is contiguous and covers its whole memory."""
    value = argument(as_strided_node, "self").meta["val"]
    return _dims_by_stride(value) == [*range(value.dim())]


def _node_covering_memory(source: Node, as_strided_node: Node) -> tuple[Node, list[int]]:
    """Return (node, dims): ``source`` or the tensor that it is a view of, whose elements fill the memory without gaps;
    and the dims of that tensor, from the largest to the smallest stride. If there is no such tensor, raise a
    `CaptureError` that names ``as_strided_node``, which reads ``source``."""
    memory, node = _storage_key(source), source
    while (order := _dims_by_stride(node.meta["val"])) is None:
        below = [given for given in node.all_input_nodes if _storage_key(given) == memory]
        if len(below) != 1 or not may_alias_input(node):
            raise _unknown_contents_error(as_strided_node)
        node = below[0]
    return node, order


def _storage_key(node: Node) -> tuple[int | None, torch.dtype] | None:
    """Return a pair (storage id, dtype), equal for tensors in the same memory; None if the value is no tensor."""
    value = node.meta.get("val")
    return (storage_id(value), value.dtype) if isinstance(value, torch.Tensor) else None


def _dims_by_stride(tensor: torch.Tensor) -> list[int] | None:
    """Return the dims of a tensor, from the largest to the smallest stride; None if it does not cover its memory."""
    sizes, strides = shape_of(tensor), [expression(stride) for stride in tensor.stride()]
    count = sympy.Mul(*sizes)
    held: Argument = tensor.untyped_storage().nbytes()
    if expression(tensor.storage_offset()) != 0 or expression(held // tensor.element_size()) != count:
        return None
    left, order, step = [d for d, size in enumerate(sizes) if size != 1], list[int](), sympy.Integer(1)
    while left:
        dim = next((d for d in reversed(left) if strides[d] == step), None)
        if dim is None:
            return None
        left.remove(dim)
        order.insert(0, dim)
        step *= sizes[dim]
    for dim in (d for d, size in enumerate(sizes) if size == 1):  # where these are is no matter
        order.insert(dim, dim)
    return order


def _unknown_contents_error(node: Node) -> CaptureError:
    """Return the error for an ``as_strided`` node that may read memory which no tensor of the graph describes."""
    place = source_line_in(node.meta).partition(",")[0] or node.name
    why = f"{node.target} at {place} reads memory whose contents no tensor in the captured graph determines"
    return CaptureError(why, HINT)
