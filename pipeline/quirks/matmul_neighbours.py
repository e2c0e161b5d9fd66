"""Find the matmuls whose kernels return wrong results because of the operators before or after them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import getitem
from typing import Final

import torch

from pipeline.aten.arguments import argument, argument_names, bind
from pipeline.aten.op_predicates import is_cheap, is_pointwise, moves_elements
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import aten
from pipeline.quirks.quirk import AffectedNode, SegmentNodes
from pipeline.quirks.reduction_fusion import ADDING

WITHIN: Final = 6
"""The maximum length of a path of operators after a matmul that is examined."""
BEHIND: Final = 8
"""The maximum number of operators between a matmul and a ReLU or GELU."""
PARTS: Final = (Kind.SELECTS, Kind.MIXES)
"""Kinds of operators that are not views, but whose results are elements of their inputs."""
PASSING: Final = (Kind.COPIES, Kind.CASTS, Kind.RESHAPES, Kind.SQUEEZES, Kind.REPEATS)
"""Kinds of operators that keep the last dim last."""
RESULT: Final = "result"
"""Stands for the matmul's result in a mark, whose other names are inputs of the matmul."""
OF_SIZES: Final = "of sizes that vary"
BESIDE_SIZES: Final = "beside sizes that vary"
"""Reasons in a mark: dynamic sizes of the matmul itself, or of another linear layer."""


def find_transposed_matmuls(segment: SegmentNodes, dtypes: Collection[torch.dtype]) -> Iterator[AffectedNode]:
    """Yield the matmuls of these dtypes with a transposed operand, or with a result that the next operator transposes
    (`transposed-matmuls`, `transposed-float32-matmuls`)."""
    for node in segment.nodes:
        kind = op_kind(node.target)
        is_matmul = kind is Kind.MULTIPLIES or node.target is aten.linear.default
        if is_matmul and node.meta["val"].dtype in dtypes:
            given = list(bind(node.target, node.args, node.kwargs)) if kind is Kind.MULTIPLIES else []
            del given[: node.target in ADDING]
            names = [x.name for x in given if isinstance(x, torch.fx.Node) and _is_transposed(x)]
            if any(_moves_last_dim(user) for user in node.users):
                names.append(RESULT)
            if names:
                yield "converter", node.name, tuple(names)


def _is_transposed(value: object) -> bool:
    """Return whether a value is a tensor whose last dim was moved, possibly followed by casts and reshapes."""
    while isinstance(value, torch.fx.Node) and op_kind(value.target) in PASSING:
        value = value.args[0]
    return isinstance(value, torch.fx.Node) and _moves_last_dim(value)


def _moves_last_dim(node: torch.fx.Node) -> bool:
    if node.target is aten.t.default:
        return True
    rank = node.meta["val"].dim() if node.target in (aten.permute.default, aten.transpose.int) else 0
    if not rank:
        return False
    _, *dims = bind(node.target, node.args, node.kwargs)
    if node.target is aten.permute.default:
        return bool(dims[0][-1] % rank != rank - 1)
    return bool(dims[0] % rank != dims[1] % rank and rank - 1 in (dims[0] % rank, dims[1] % rank))


def find_scaled_matmuls(segment: SegmentNodes) -> Iterator[AffectedNode]:
    """Yield the matmuls whose kernel may include a multiplication, so that TensorRT may run another matmul's kernel in
    its place (`factors-of-matmuls`): of two computed tensors, or linear layers if another one has dynamic sizes."""
    linear = [node for node in segment.nodes if op_kind(node.target) is Kind.PROJECTS]
    varying = {node for node in linear if not all(isinstance(size, int) for size in node.meta["val"].shape)}
    for node in segment.nodes:
        kind = op_kind(node.target)
        if kind is Kind.MULTIPLIES:
            has_factor = "alpha" in argument_names(node.target) and argument(node, "alpha") != 1
            if has_factor or _is_read_elementwise(segment, node):
                yield "converter", node.name, (OF_SIZES,)
        elif kind is Kind.PROJECTS and varying - {node} and _is_read_elementwise(segment, node):
            yield "converter", node.name, (BESIDE_SIZES,)


def _is_read_elementwise(segment: SegmentNodes, node: torch.fx.Node, depth: int = WITHIN) -> bool:
    """Return whether an elementwise operator, not only for a softmax, reads a node through at most ``depth`` views."""
    return any(
        (is_pointwise(user) and not _leads_only_to_softmax(segment, user))
        or (depth > 0 and moves_elements(user) and _is_read_elementwise(segment, user, depth - 1))
        for user in node.users
    )


def _leads_only_to_softmax(segment: SegmentNodes, node: torch.fx.Node, depth: int = WITHIN) -> bool:
    """Return whether all paths from a node lead to a softmax of the segment, by at most ``depth`` cheap operators."""
    if op_kind(node.target) is Kind.SOFTENS:
        return node.name in segment.names
    goes_on = depth and is_cheap(node) and node.users and node.name in segment.names
    return bool(goes_on) and all(_leads_only_to_softmax(segment, user, depth - 1) for user in node.users)


def find_activations_after_bias(segment: SegmentNodes) -> Iterator[AffectedNode]:
    """Yield each ReLU, GELU or part of a GELU after a matmul: the matmul's bias may be lost (`biases-of-matmuls`)."""
    for node in segment.nodes:
        given = node.args[0] if node.target is aten.tanh.default else None
        loses = node.target in (aten.relu.default, aten.gelu.default, aten.erf.default)
        loses = loses or (isinstance(given, torch.fx.Node) and given.target is aten.mul.Tensor)
        if loses and _follows_matmul(node):
            yield "converter", node.name, ()


def _follows_matmul(node: torch.fx.Node) -> bool:
    before = [node]
    for _ in range(BEHIND):
        before = list(dict.fromkeys(source for node in before for source in node.all_input_nodes))
        if any(op_kind(node.target) in (Kind.PROJECTS, Kind.MULTIPLIES) for node in before):
            return True
        before = [node for node in before if is_cheap(node) or node.target is getitem or op_kind(node.target) in PARTS]
    return False


def find_readers_of_float32(segment: SegmentNodes) -> Iterator[AffectedNode]:
    """Yield the nodes that read a float32 result of an elementwise operator. If such a node is a matmul, its converter
    keeps a later cast to half precision out of its kernel (`halves-behind-matmuls`)."""
    for node in segment.nodes:
        if not (is_pointwise(node) or moves_elements(node)) and any(map(_is_elementwise_float32, node.all_input_nodes)):
            yield "converter", node.name, ()


def _is_elementwise_float32(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return is_pointwise(node) and isinstance(value, torch.Tensor) and value.dtype == torch.float32
