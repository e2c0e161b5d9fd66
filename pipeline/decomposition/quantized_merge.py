"""Rewrite matmuls by quantized weights as matmuls of 2-D tensors, into which TensorRT-RTX fuses the dequantization.

The builder itself merges matmuls of the same tensor (by the weights of query, key and value, say), and dequantizes
their weights for that: either during the build, which loses the saving, or in a separate kernel. One matmul with
concatenated columns reads quantized values instead. Matmuls of tensors with more than two dims are fused for some sizes
only. RTX 1.6 dequantizes in a separate kernel if the rows come from a permutation (an attention's result with a batch
size above 1), but not if the maximum of the rows with themselves is computed first. The single-row kernel (GEMV)
supports neither INT8 nor FP8: the matmul gets the row twice, and the result is the mean of both rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from pipeline.aten.quantized import operators
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument, aten
from pipeline.decomposition.quantized_activations import GraphEdit, Node
from pipeline.trt import CAPABILITIES

MATMUL_TARGETS = (aten.mm.default, aten.matmul.default)
RTX = CAPABILITIES.flavour == "tensorrt_rtx"
BEFORE_1_7 = not CAPABILITIES.codes_beside_floats
LEADING_DIMS = (1,) if BEFORE_1_7 else ()
"""The dims before flattened rows: TensorRT-RTX 1.6.1 fuses batched matmuls with a batch of 1, 1.7.1 matrices."""
MERGED_TYPES = ("int8", "int4", "fp8")
TWO_ROW_TYPES = ("int8",) if BEFORE_1_7 else ("int8", "fp8") if RTX else ()
"""The types for which TensorRT fuses matmuls of two rows, but not of a single row."""
PAIR_OPERATORS = (operators.fake_quantize.default, operators.fake_quantize_blocks.default)


def merge_matmuls(edit: GraphEdit) -> None:
    """Rewrite the matmuls with quantized weights in a graph, and merge those that multiply the same rows."""
    for node in list(edit.graph.nodes):
        if node.target is aten.mm.default and edit.is_weight(node.args[1]):
            _multiply_in_original_shape(edit, node)
    groups = defaultdict[Argument, list[Node]](list)
    for node in edit.graph.nodes:
        if node.target in MATMUL_TARGETS and _can_merge(edit, node):
            codes, _, type, block, dtype = node.args[1].args
            groups[node.args[0], codes.meta["val"].dtype, type, block[0], dtype].append(node)
    for group in groups.values():
        _MatmulMerger(edit, group).merge()


def _multiply_in_original_shape(edit: GraphEdit, matmul: Node) -> None:
    """If a matmul's input is flattened to rows and its result unflattened, multiply the input before flattening."""
    rows, user = matmul.args[0], next(iter(matmul.users), None)
    if op_kind(rows.target) is not Kind.RESHAPES or user is None or op_kind(user.target) is not Kind.RESHAPES:
        return
    x = rows.args[0]
    wanted = (*x.meta["val"].shape[:-1], matmul.meta["val"].shape[-1])
    kept = len(matmul.users) == 1 and statically_known_true(sym_eq(tuple(user.meta["val"].shape), wanted))
    if kept and statically_known_true(x.meta["val"].shape[-1] == rows.meta["val"].shape[-1]):
        made = edit.insert(matmul, aten.matmul.default, (x, matmul.args[1]))
        user.replace_all_uses_with(made)
        for node in (user, matmul, *[rows] * (len(rows.users) == 1)):
            edit.graph.erase_node(node)


def _can_merge(edit: GraphEdit, matmul: Node) -> bool:
    """Return whether a matmul may be merged with others of the same input (`_MatmulMerger.merge`): no other node reads
    its quantized weight, no two columns need to share scales, and its input is neither quantized nor constant."""
    x, weight = matmul.args
    if not (edit.is_weight(weight) and len(weight.users) == 1) or edit.constant[x] or x.target in PAIR_OPERATORS:
        return False
    _, _, type, block, _ = weight.args
    return type in MERGED_TYPES and (block[1] == 1 or list(block) == [-1, -1])


class _MatmulMerger:
    def __init__(self, edit: GraphEdit, matmuls: list[Node]) -> None:
        self.edit, self.matmuls, self.first = edit, matmuls, matmuls[0]
        self.positions = {node: place for place, node in enumerate(edit.graph.nodes)}

    def merge(self) -> None:
        """Replace the matmuls, which multiply one tensor, by one matmul with concatenated weights; slice its result."""
        weights = [product.args[1] for product in self.matmuls]
        columns = [weight.meta["val"].shape[1] for weight in weights]
        sums = [self.sum_with_bias(product) for product in self.matmuls]
        biases = [total.args[1] for total in sums if total is not None]
        for node in (*(arg for weight in weights for arg in weight.args[:2]), *biases):
            self.move_before_first_matmul(node)
        made = self.insert(aten.matmul.default, (self.flattened_rows(), self.concatenate_weights(weights, columns)))
        if self.has_single_row:
            made = self.insert(aten.mean.dim, (made, [-2], True))
        ends: list[Node] = self.matmuls
        if len(biases) == len(sums):
            bias = biases[0] if len(biases) == 1 else self.insert(aten.cat.default, (biases,))
            made = self.insert(aten.add.Tensor, (made, bias))
            ends = [total for total in sums if total is not None]
        if self.needs_flattening:
            x = self.first.args[0]
            sizes = [
                size if isinstance(size, int) else self.insert(aten.sym_size.int, (x, dim))
                for dim, size in enumerate(x.meta["val"].shape[:-1])
            ]
            made = self.insert(aten.reshape.default, (made, [*sizes, sum(columns)]))
        self.split_result(made, ends, columns)

    def concatenate_weights(self, weights: Sequence[Node], columns: Sequence[int]) -> Node:
        """Return one weight with the columns of all ``weights``. ``columns``: the number of columns of each."""
        if len(weights) == 1:
            return weights[0]
        codes = self.insert(aten.cat.default, ([weight.args[0] for weight in weights], 1))
        rows = [weight.args[1] for weight in weights]
        for i, (row, count) in enumerate(zip(rows, columns, strict=True)):
            if row.meta["val"].numel() == 1:
                rows[i] = self.insert(aten.expand.default, (row, [1, count]))
        _, _, type, block, dtype = weights[0].args
        scales = self.insert(aten.cat.default, (rows, 1))
        return self.edit.insert_dequantized_weight(self.first, codes, scales, type, [block[0], 1], dtype)

    @property
    def needs_flattening(self) -> bool:
        """Return whether the tensor that the matmuls multiply has more than two dims."""
        return bool(self.first.args[0].meta["val"].dim() > 2)

    @property
    def has_single_row(self) -> bool:
        """Return whether a single row is multiplied, and TensorRT's kernel for single rows lacks the quantized type."""
        *leading, _ = self.first.args[0].meta["val"].shape
        type = self.first.args[1].args[2]
        return bool(leading) and type in TWO_ROW_TYPES and statically_known_true(math.prod(leading) == 1)

    def flattened_rows(self) -> Node:
        """Return the tensor that the matmuls multiply, flattened to rows."""
        x = self.first.args[0]
        columns = x.meta["val"].shape[-1]
        rows = self.insert(aten.reshape.default, (x, [*LEADING_DIMS, -1, columns])) if self.needs_flattening else x
        if self.has_single_row:
            return self.insert(aten.expand.default, (rows, [*rows.meta["val"].shape[:-2], 2, columns]))
        moved = BEFORE_1_7 and self.needs_flattening and x.op != "placeholder"
        return self.insert(aten.maximum.default, (rows, rows)) if moved else rows

    def split_result(self, merged: Node, original_results: Sequence[Node], columns: Sequence[int]) -> None:
        """Replace the result of each original matmul by its columns of the merged result."""
        dim, bounds = merged.meta["val"].dim() - 1, list(accumulate(columns, initial=0))
        parts = [merged]
        if len(columns) > 1:
            parts = [self.insert(aten.slice.Tensor, (merged, dim, *each)) for each in pairwise(bounds)]
        for end, part, product in zip(original_results, parts, self.matmuls, strict=True):
            end.replace_all_uses_with(part)
            for node in dict.fromkeys((end, product, product.args[1])):
                if not node.users:
                    self.edit.graph.erase_node(node)

    def sum_with_bias(self, matmul: Node) -> Node | None:
        """Return the sum of a matmul and a constant row, if nothing else reads the matmul; else None."""
        user = next(iter(matmul.users))
        if len(matmul.users) != 1 or user.target is not aten.add.Tensor or user.args[0] is not matmul or user.kwargs:
            return None
        bias, value = user.args[1], user.meta["val"]
        if not isinstance(bias, torch.fx.Node) or not self.edit.constant[bias]:
            return None
        same = bias.meta["val"].shape == value.shape[-1:] and bias.meta["val"].dtype == value.dtype
        return user if same and value.dtype == matmul.meta["val"].dtype else None

    def move_before_first_matmul(self, node: Node) -> None:
        """Move a constant node, and the nodes that compute it, before the first matmul."""
        waiting, later = [node], set[Node]()
        while waiting:
            each = waiting.pop()
            if each not in later and self.positions[each] > self.positions[self.first]:
                later.add(each)
                waiting += each.all_input_nodes
        for each in sorted(later, key=self.positions.__getitem__):
            self.first.prepend(each)
            self.positions[each] = -1

    def insert(self, target: Argument, args: tuple[Argument, ...]) -> Node:
        """Insert an operator call before the first of the merged matmuls."""
        return self.edit.insert(self.first, target, args)
