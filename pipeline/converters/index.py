"""Convert reads and writes by index tensors, operators on masks (triangle, one-hot, masked scatter), and embeddings.

Indices that the graph proves to be non-negative need no layers that wrap negative indices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from pipeline.aten.traits import PART, Kind, op_kind
from pipeline.converters.binding import CompilationSettings, Rejection, argument, aten, converts
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.converters.scatter import check_comparison_size
from pipeline.impl import base
from pipeline.impl import embedding as _embedding
from pipeline.impl import index as _index
from pipeline.impl import index_masks as _index_masks
from pipeline.impl import index_put as _index_put
from pipeline.impl.base import ITensor, Net, Value
from pipeline.impl.shape import result_sizes, sizes_of
from pipeline.trt import CAPABILITIES, LIBRARY

INTEGERS = (torch.int32, torch.int64)


@converts(aten.embedding.default)
def embedding(net: Net, weight: Value, indices: Value) -> ITensor:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, …) -> Tensor"""
    return _embedding.embedding(net, weight, indices)


def _check_embedding_bag(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Only embedding_bag's first result may be read; bags times indices times columns must be at most 2**31 - 1."""
    for user in node.users:
        if user.target is not operator.getitem or user.args[1] != 0:
            return Rejection(f"{user.name} reads an output for gradients, and an engine computes only the bags")
    weight, indices = argument(node, "weight").meta["val"], argument(node, "indices").meta["val"]
    if indices.dim() != 1:
        return Rejection(f"the indices have rank {indices.dim()}; the converter supports rank 1, with offsets")
    return check_comparison_size(node.meta["val"][0].shape[0], indices.shape[0], weight.shape[1])


@converts(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, validator=_check_embedding_bag)
def embedding_bag(
    net: Net,
    weight: Value,
    indices: Value,
    offsets: Value,
    mode: int,
    per_sample_weights: Value | None,
    padding_idx: int,
) -> tuple[ITensor | None, ...]:
    """_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0,
    bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1)
    -> (Tensor, Tensor, Tensor, Tensor)"""
    bags = sizes_of(net.node.meta["val"][0])[0]
    bag = _embedding.embedding_bag(
        net, weight, base.tensor(net, indices), offsets, bags, _embedding.MODES[mode], per_sample_weights, padding_idx
    )
    return bag, None, None, None


def _check_indices(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Indices must be integers, or one mask if the number of elements that it selects is known at capture."""
    masks = [(place, each.dtype) for place, each in _index_tensors(node) if each.dtype not in INTEGERS]
    if not masks:
        return True
    if _indexes_by_mask(node) and not free_unbacked_symbols(node.meta["val"]):
        return check_cumulative_layer(node, settings)
    place, dtype = masks[0]
    return Rejection(
        f"{argument(node, 'indices')[place]} is a mask ({dtype}): the shape of the result depends on its values",
        "use torch.where or masked_fill, whose result has the shape of the input",
    )


def _index_tensors(node: torch.fx.Node) -> list[tuple[int, torch.Tensor]]:
    """Return the index tensors of a node, each with the dim that it indexes."""
    given = enumerate(argument(node, "indices"))
    return [(i, each.meta["val"] if isinstance(each, torch.fx.Node) else each) for i, each in given if each is not None]


def _indexes_by_mask(node: torch.fx.Node) -> bool:
    return [each.dtype for _, each in _index_tensors(node)] == [torch.bool]


@converts(aten.index.Tensor, validator=_check_indices)
def index(net: Net, input: Value, indices: Sequence[Value | None]) -> ITensor:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor. Negative indices count from the end. A mask (bool tensor)
    must select as many elements as the node's fake result has."""
    x = base.tensor(net, input)
    if _indexes_by_mask(net.node):
        [(dim, _)] = _index_tensors(net.node)
        return _index_masks.select_by_mask(net, x, indices[dim], dim, result_sizes(net)[dim])
    return _index.index(net, x, indices, non_negative_positions(argument(net.node, "indices")))


@converts(aten.index_select.default)
def index_select(net: Net, input: Value, dim: int, index: Value) -> ITensor:
    """index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    return _index.index_select(net, base.tensor(net, input), dim, index)


@converts(aten.gather.default)
def gather(net: Net, input: Value, dim: int, index: Value) -> ITensor:
    """gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    input = base.tensor(net, input)
    if base.rank(input) == 0:
        return base.expand(net, input, result_sizes(net))
    return _index.gather(net, input, index, dim)


def _check_index_put(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Indices must be integers, or one mask. To accumulate, self.numel() times index.numel() must be below 2**31."""
    tensors, x = _index_tensors(node), argument(node, "self").meta["val"]
    if not all(t.dtype in INTEGERS for _, t in tensors):
        if len(tensors) > 1:
            return Rejection("a mask with other indices selects a data-dependent number of elements", "use torch.where")
        return True
    if not argument(node, "accumulate"):
        return True
    if x.dim() - len(tensors) > 6:
        return Rejection("accumulating needs a tensor of rank 9, and TensorRT supports rank 8", "flatten two dims")
    return check_comparison_size(*x.shape, *torch.broadcast_shapes(*(t.shape for _, t in tensors)))


@register_torch_trt_decomposition(aten.put.default)
def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    row: torch.Tensor = aten.index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return row.reshape(x.shape)


@converts(aten.index_put.default, validator=_check_index_put)
def index_put(net: Net, input: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> ITensor:
    """index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor"""
    input = base.tensor(net, input)
    place, given = _index_tensors(net.node)[0]
    if given.dtype not in INTEGERS:
        return _index_put.mask_put(net, input, indices[place], place, values, accumulate)
    signs = non_negative_positions(argument(net.node, "indices"))
    return _index_put.index_put(net, input, indices, values, accumulate, signs)


@converts({aten.tril.default: True, aten.triu.default: False})
def triangle(net: Net, lower: bool, input: Value, diagonal: int) -> ITensor:
    """tril(Tensor self, SymInt diagonal=0) -> Tensor; triu if ``lower`` is False"""
    return _index_masks.triangle(net, base.tensor(net, input), diagonal, lower)


def _check_class_count(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The argument num_classes must be given: a number that depends on data is not supported."""
    classes = argument(node, "num_classes")
    if isinstance(classes, int) and classes > 0:
        return True
    return Rejection("the number of classes is data-dependent (the largest index)", "pass num_classes to one_hot")


@converts(aten.one_hot.default, validator=_check_class_count)
def one_hot(net: Net, input: Value, num_classes: int) -> ITensor:
    """one_hot(Tensor self, int num_classes=-1) -> Tensor"""
    return _index_masks.one_hot(net, input, num_classes)


def check_cumulative_layer(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """TensorRT must have a cumulative sum layer (10.8), which numbers the elements that the mask selects."""
    return CAPABILITIES.cumulative or Rejection(f"{LIBRARY} has no layer for cumulative sums, which the operator needs")


@converts(aten.masked_scatter.default, validator=check_cumulative_layer)
def masked_scatter(net: Net, input: Value, mask: Value, source: Value) -> ITensor:
    """masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"""
    whole = base.expand(net, base.tensor(net, input), result_sizes(net))
    return _index_masks.masked_scatter(net, whole, mask, source)


DEEP = 12
"""The maximum number of consecutive operators that are examined for one index."""


def non_negative_positions(indices: Sequence[Any]) -> frozenset[int]:
    """Return the positions of the provably non-negative tensors in a list of index tensors."""
    return frozenset(i for i, each in enumerate(indices) if each is not None and is_non_negative(each))


def is_non_negative(value: Any, max_depth: int = DEEP) -> bool:
    """Return whether a number or a node's result is provably non-negative."""
    if isinstance(value, (bool, int, torch.SymInt)):
        return statically_known_true(value >= 0)
    if not isinstance(value, torch.fx.Node) or max_depth == 0:
        return False
    known = value.meta.get("val")
    if isinstance(known, torch.SymInt):
        return statically_known_true(known >= 0)
    if isinstance(known, torch.Tensor) and known.dtype in (torch.bool, torch.uint8):
        return True
    source = value.args[0] if value.target is operator.getitem else value
    kind = op_kind(source.target) if isinstance(source, torch.fx.Node) else None
    if kind in PART:
        return is_non_negative(value.args[0], max_depth - 1)
    if kind is Kind.CASTS:  # to an integer dtype that does not overflow for them
        return value.meta["val"].dtype in INTEGERS and is_non_negative(value.args[0], max_depth - 1)
    rule = RULES.get(value.target)
    return kind is Kind.PLACES or (rule is not None and rule(value, max_depth - 1))


def _is_non_negative_arange(node: torch.fx.Node, depth: int) -> bool:
    return is_non_negative(argument(node, "start", 0), depth) and is_non_negative(argument(node, "step", 1), depth)


def _are_operands_non_negative(node: torch.fx.Node, max_depth: int) -> bool:
    """Return whether both operands of a node are provably non-negative, and no ``alpha`` changes a sign."""
    return not node.kwargs and all(is_non_negative(value, max_depth) for value in node.args[:2])


def _is_clamped_to_non_negative(node: torch.fx.Node, max_depth: int) -> bool:
    low = argument(node, "min")
    return low is not None and is_non_negative(low, max_depth)


RULES: Mapping[Any, Callable[[torch.fx.Node, int], bool]] = {
    aten.arange.default: _is_non_negative_arange,
    aten.arange.start: _is_non_negative_arange,
    aten.arange.start_step: _is_non_negative_arange,
    aten.add.Tensor: _are_operands_non_negative,
    aten.mul.Tensor: _are_operands_non_negative,
    aten.maximum.default: lambda node, depth: any(is_non_negative(a, depth) for a in node.args[:2]),
    aten.minimum.default: _are_operands_non_negative,
    aten.clamp.default: _is_clamped_to_non_negative,
    aten.clamp_min.default: _is_clamped_to_non_negative,
    aten.full.default: lambda node, depth: is_non_negative(node.args[1], depth),
}
