"""Rewrite matmuls by quantized weights so that TensorRT-RTX's builder fuses the dequantization: matmuls of 2-D tensors,
which are merged if they read the same rows.

The builder itself merges matmuls of the same tensor (by the weights of query, key and value, say), and dequantizes
their weights for that: either during the build, which loses the saving, or in a separate kernel. One matmul with
concatenated columns reads quantized values instead. Matmuls of tensors with more than two dims are fused for some sizes
only. RTX 1.6 dequantizes separately if a permutation returns the rows, as for the result of an attention or for several
batches, but not after a layer that takes the maximum of the rows and themselves. The single-row kernel (GEMV) supports
neither INT8 nor FP8: the matmul runs on two equal rows instead, and the result is their mean.
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
from pipeline.decomposition.quantized_activations import Edit, Node
from pipeline.trt import CAPABILITIES

TARGETS = (aten.mm.default, aten.matmul.default)
RTX = CAPABILITIES.flavour == "tensorrt_rtx"
BEFORE_1_7 = not CAPABILITIES.codes_beside_floats
LEADING = (1,) if BEFORE_1_7 else ()
"""Leading dims of flattened rows: 1.6.1 fuses batched matmuls with a batch of 1, 1.7.1 matmuls of matrices."""
KINDS = ("int8", "int4", "fp8")
LONE = ("int8",) if BEFORE_1_7 else ("int8", "fp8") if RTX else ()
"""The types for which TensorRT fuses matmuls of two rows, but not of a single row."""
PAIRS = (operators.fake_quantize.default, operators.fake_quantize_blocks.default)


def merge_products(edit: Edit) -> None:
    """Rewrite a graph's matmuls by laid-out weights."""
    for node in list(edit.graph.nodes):
        if node.target is aten.mm.default and edit.is_weight(node.args[1]):
            _keep_dims(edit, node)
    groups = defaultdict[Argument, list[Node]](list)
    for node in edit.graph.nodes:
        if node.target in TARGETS and _can_merge(edit, node):
            codes, _, type, block, dtype = node.args[1].args
            groups[node.args[0], codes.meta["val"].dtype, type, block[0], dtype].append(node)
    for group in groups.values():
        _Merger(edit, group).run()


def _keep_dims(edit: Edit, product: Node) -> None:
    """Multiply a tensor in its original shape if it was flattened to rows for the matmul and unflattened afterwards."""
    rows, user = product.args[0], next(iter(product.users), None)
    if op_kind(rows.target) is not Kind.RESHAPES or user is None or op_kind(user.target) is not Kind.RESHAPES:
        return
    x = rows.args[0]
    wanted = (*x.meta["val"].shape[:-1], product.meta["val"].shape[-1])
    kept = len(product.users) == 1 and statically_known_true(sym_eq(tuple(user.meta["val"].shape), wanted))
    if kept and statically_known_true(x.meta["val"].shape[-1] == rows.meta["val"].shape[-1]):
        made = edit.call(product, aten.matmul.default, (x, product.args[1]))
        user.replace_all_uses_with(made)
        for node in (user, product, *[rows] * (len(rows.users) == 1)):
            edit.graph.erase_node(node)


def _can_merge(edit: Edit, product: Node) -> bool:
    """Return whether only this matmul reads its weight, scales are per column, and the other operand is not a pair."""
    x, weight = product.args
    if not (edit.is_weight(weight) and len(weight.users) == 1) or edit.constant[x] or x.target in PAIRS:
        return False
    _, _, type, block, _ = weight.args
    return type in KINDS and (block[1] == 1 or list(block) == [-1, -1])


class _Merger:
    def __init__(self, edit: Edit, products: list[Node]) -> None:
        self.edit, self.products, self.first = edit, products, products[0]
        self.places = {node: place for place, node in enumerate(edit.graph.nodes)}

    def run(self) -> None:
        weights = [product.args[1] for product in self.products]
        columns = [weight.meta["val"].shape[1] for weight in weights]
        sums = [self.bias_of(product) for product in self.products]
        biases = [total.args[1] for total in sums if total is not None]
        for node in (*(arg for weight in weights for arg in weight.args[:2]), *biases):
            self.hoist(node)
        made = self.call(aten.matmul.default, (self.rows(), self.beside(weights, columns)))
        if self.is_lone:
            made = self.call(aten.mean.dim, (made, [-2], True))
        ends: list[Node] = self.products
        if len(biases) == len(sums):
            bias = biases[0] if len(biases) == 1 else self.call(aten.cat.default, (biases,))
            made = self.call(aten.add.Tensor, (made, bias))
            ends = [total for total in sums if total is not None]
        if self.is_flattened:
            x = self.first.args[0]
            sizes = [
                size if isinstance(size, int) else self.call(aten.sym_size.int, (x, dim))
                for dim, size in enumerate(x.meta["val"].shape[:-1])
            ]
            made = self.call(aten.reshape.default, (made, [*sizes, sum(columns)]))
        self.share(made, ends, columns)

    def beside(self, weights: Sequence[Node], columns: Sequence[int]) -> Node:
        """Concatenate the weights along their columns."""
        if len(weights) == 1:
            return weights[0]
        codes = self.call(aten.cat.default, ([weight.args[0] for weight in weights], 1))
        rows = [weight.args[1] for weight in weights]
        for i, (row, count) in enumerate(zip(rows, columns, strict=True)):
            if row.meta["val"].numel() == 1:
                rows[i] = self.call(aten.expand.default, (row, [1, count]))
        _, _, type, block, dtype = weights[0].args
        scales = self.call(aten.cat.default, (rows, 1))
        return self.edit.dequantized(self.first, codes, scales, type, [block[0], 1], dtype)

    @property
    def is_flattened(self) -> bool:
        """Return whether the matmuls' tensor has more than two dims."""
        return bool(self.first.args[0].meta["val"].dim() > 2)

    @property
    def is_lone(self) -> bool:
        """Return whether a single row is multiplied, whose kernel does not support the quantized type."""
        *leading, _ = self.first.args[0].meta["val"].shape
        type = self.first.args[1].args[2]
        return bool(leading) and type in LONE and statically_known_true(math.prod(leading) == 1)

    def rows(self) -> Node:
        """Return the matmuls' tensor as rows."""
        x = self.first.args[0]
        columns = x.meta["val"].shape[-1]
        rows = self.call(aten.reshape.default, (x, [*LEADING, -1, columns])) if self.is_flattened else x
        if self.is_lone:
            return self.call(aten.expand.default, (rows, [*rows.meta["val"].shape[:-2], 2, columns]))
        moved = BEFORE_1_7 and self.is_flattened and x.op != "placeholder"
        return self.call(aten.maximum.default, (rows, rows)) if moved else rows

    def share(self, made: Node, ends: Sequence[Node], columns: Sequence[int]) -> None:
        """Replace the original results by columns of the merged result."""
        dim, bounds = made.meta["val"].dim() - 1, list(accumulate(columns, initial=0))
        parts = [made]
        if len(columns) > 1:
            parts = [self.call(aten.slice.Tensor, (made, dim, *each)) for each in pairwise(bounds)]
        for end, part, product in zip(ends, parts, self.products, strict=True):
            end.replace_all_uses_with(part)
            for node in dict.fromkeys((end, product, product.args[1])):
                if not node.users:
                    self.edit.graph.erase_node(node)

    def bias_of(self, product: Node) -> Node | None:
        """Return the sum of a matmul and a constant row, if nothing else reads the matmul; else None."""
        user = next(iter(product.users))
        if len(product.users) != 1 or user.target is not aten.add.Tensor or user.args[0] is not product or user.kwargs:
            return None
        bias, value = user.args[1], user.meta["val"]
        if not isinstance(bias, torch.fx.Node) or not self.edit.constant[bias]:
            return None
        same = bias.meta["val"].shape == value.shape[-1:] and bias.meta["val"].dtype == value.dtype
        return user if same and value.dtype == product.meta["val"].dtype else None

    def hoist(self, node: Node) -> None:
        """Move the nodes that compute a constant before the first matmul."""
        waiting, later = [node], set[Node]()
        while waiting:
            each = waiting.pop()
            if each not in later and self.places[each] > self.places[self.first]:
                later.add(each)
                waiting += each.all_input_nodes
        for each in sorted(later, key=self.places.__getitem__):
            self.first.prepend(each)
            self.places[each] = -1

    def call(self, target: Argument, args: tuple[Argument, ...]) -> Node:
        """Insert a call before the first matmul."""
        return self.edit.call(self.first, target, args)
