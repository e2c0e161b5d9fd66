"""Lay out quantized weights so that TensorRT's builder fuses their dequantization into the kernel that reads them.

Operators that move dequantized elements move the quantized values instead, so that a linear layer's weight is a
quantized ``[K, N]`` matrix without a transposition. Later casts and scales become part of the dequantization. Weights
that multiply the same tensor are concatenated. Blocks are along one dim. 4-bit values are packed if a matmul reads
them. All of this is folded: an engine gets quantized values and scales.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.quantized import TYPES, is_packed, operators
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument, aten
from pipeline.decomposition.quantized_activations import DEQUANTIZE, GraphEdit, Node, cast_int8_to_int32, is_cast_to
from pipeline.decomposition.quantized_merge import merge_matmuls
from pipeline.program import Program
from pipeline.trt import CAPABILITIES

Scales: TypeAlias = tuple[Node, list[int]]
"""A node of scales, and the block shape: how many elements along each dim share a scale."""

MATMULS: Final = (Kind.MULTIPLIES, Kind.PROJECTS)
BLOCK_LENGTHS: Final = (128, 64, 32, 16)
"""The lengths to try for blocks of rows with one scale, if TensorRT supports a type only in blocks."""


def lay_out_quantized(program: Program) -> Program:
    """Change a graph in place so that TensorRT fuses the dequantization of weights into kernels; return the program."""
    if any(node.target is DEQUANTIZE or is_cast_to(torch.int8, node) for node in program.graph.nodes):
        _WeightLayout(program).lay_out()
    return program


class _WeightLayout(GraphEdit):
    def lay_out(self) -> None:
        """Change the graph so that TensorRT fuses the dequantization of weights into the kernels that read them: move
        quantized values instead of floats, merge matmuls, arrange scales in blocks and pack 4-bit values."""
        waiting = [node for node in self.graph.nodes if self.is_weight(node)]
        while waiting:
            node = waiting.pop()
            for user in list(node.users):
                made = self.replacement_for_reader(node, user)
                if made is not None:
                    self.replace(user, made)
                    waiting += [made] * self.is_weight(made)
        self.erase_unread_nodes()
        merge_matmuls(self)
        cast_int8_to_int32(self)
        for node in [n for n in self.graph.nodes if self.is_weight(n)]:
            self.arrange_blocks(node)

    def replacement_for_reader(self, weight: Node, reader: Node) -> Node | None:
        """Return a node that replaces ``reader``, an operator that reads a weight, for example the transposed weight
        for a transposition; None if ``reader`` stays."""
        if reader.target is aten.linear.default and reader.args[1] is weight and weight.meta["val"].dim() == 2:
            return self.linear_as_matmul(weight, reader)
        if reader.target in (aten.mm.default, aten.matmul.default) and reader.args[1] is weight:
            self.absorb_column_scales(weight, reader)
            return None
        kind = op_kind(reader.target)
        if reader.args[0] is not weight:
            return None
        if kind is Kind.TRANSPOSES:
            return self.transpose_weight(weight, reader)
        if kind is Kind.RESHAPES:
            return self.reshape_weight(weight, reader)
        if kind is Kind.COPIES or (kind is Kind.CASTS and reader.meta["val"].dtype.is_floating_point):
            codes, scale, type, block, _ = weight.args
            return self.insert_dequantized_weight(reader, codes, scale, type, block, reader.meta["val"].dtype)
        return self.scale_weight(weight, reader) if reader.target is aten.mul.Tensor else None

    def linear_as_matmul(self, weight: Node, linear: Node) -> Node:
        """Return the result of a linear layer, computed as a matmul by a ``[K, N]`` weight."""
        turned = self.transpose_weight(weight, self.insert(linear, aten.permute.default, (weight, [1, 0])))
        product = self.insert(linear, aten.matmul.default, (linear.args[0], turned))
        bias = argument(linear, "bias")
        return product if bias is None else self.insert(linear, aten.add.Tensor, (product, bias))

    def transpose_weight(self, weight: Node, transposition: Node) -> Node:
        """Return the transposed weight: its quantized values and scales are transposed, not the dequantized floats."""
        codes, scale, type, block, dtype = weight.args
        order = _permutation_of(transposition, len(block))
        moved = self.insert(transposition, aten.permute.default, (codes, order))
        if scale.meta["val"].dim():
            scale = self.insert(transposition, aten.permute.default, (scale, order))
        return self.insert_dequantized_weight(transposition, moved, scale, type, [block[d] for d in order], dtype)

    def reshape_weight(self, weight: Node, reshape: Node) -> Node | None:
        """Return the weight reshaped like ``reshape``, by reshaping its quantized values and scales. Return None if a
        size is dynamic, or if a new row would cut a block (consecutive elements of a row that share a scale)."""
        codes, scale, type, block, dtype = weight.args
        shape, old = list(reshape.meta["val"].shape), weight.meta["val"].shape
        if any(not isinstance(size, int) for size in (*shape, *old)):
            return None
        if not scale.meta["val"].dim():
            new = [-1] * len(shape)
        else:
            length = old[-1] if block[-1] == -1 else int(block[-1])
            if len(old) != 2 or block[0] != 1 or not shape or shape[-1] % length or old[1] % length:
                return None
            new = [*[1] * (len(shape) - 1), length]
            scale = self.insert(reshape, aten.reshape.default, (scale, [*shape[:-1], shape[-1] // length]))
        return self.insert_dequantized_weight(
            reshape, self.insert(reshape, aten.reshape.default, (codes, shape)), scale, type, new, dtype
        )

    def scale_weight(self, weight: Node, multiplication: Node) -> Node | None:
        """Return the weight with the factor of ``multiplication`` as its scale, if its own scale is 1; else None."""
        codes, scale, type, _, dtype = weight.args
        factor, shape = multiplication.args[1], weight.meta["val"].shape
        if not (_is_constant_one(scale) and isinstance(factor, torch.fx.Node) and self.constant[factor]):
            return None
        sizes = factor.meta["val"].shape
        if multiplication.meta["val"].dtype != dtype or (len(sizes) and len(sizes) != len(shape)):
            return None
        block = [-1 if n == 1 else 1 for n in sizes] if len(sizes) else [-1] * len(shape)
        return self.insert_dequantized_weight(multiplication, codes, factor, type, block, dtype)

    def absorb_column_scales(self, weight: Node, matmul: Node) -> None:
        """If the only reader of a matmul multiplies each column of its result by a constant, replace both by a matmul:
        the constants become the scales of its weight. ``weight``: the weight until now, with scale 1."""
        codes, scale, type, _, dtype = weight.args
        user = next(iter(matmul.users)) if len(matmul.users) == 1 else None
        if user is None or user.target is not aten.mul.Tensor or not _is_constant_one(scale) or len(weight.users) != 1:
            return
        factor = next((a for a in user.args if a is not matmul), None)
        columns, value = weight.meta["val"].shape[-1], user.meta["val"]
        if not isinstance(factor, torch.fx.Node) or not self.constant[factor] or value.dtype != dtype:
            return
        sizes = factor.meta["val"].shape
        if math.prod(sizes) == columns == sizes[-1] and weight.meta["val"].dim() == 2:
            each = self.insert(user, aten.reshape.default, (factor, [1, columns]))
            new_weight = self.insert_dequantized_weight(user, codes, each, type, [-1, 1], dtype)
            self.replace(user, self.insert(user, matmul.target, (matmul.args[0], new_weight)))
            self.graph.erase_node(matmul)

    def arrange_blocks(self, weight: Node) -> None:
        """Arrange a weight's scales in blocks along one dim, and pack each two 4-bit values into a byte."""
        codes, scale, type, block, dtype = weight.args
        shape, block = list(weight.meta["val"].shape), list(block)
        few = TYPES[type].bits == 4 and not is_packed(codes.meta["val"], type)
        matmuls = all(op_kind(user.target) in MATMULS and user.args[0] is not weight for user in weight.users)
        packs = few and shape[-1] % 2 == 0 and (type == "fp4" or (matmuls and len(shape) == 2))
        cut = self.split_into_blocks(weight, scale, block) if packs and type == "int4" else None
        if type == "int4" and cut is None:
            type, packs = "int8", False
        scale, block = cut or (scale, block)
        scale, block = self.blocks_along_one_dim(weight, scale, block)
        if type == "fp8" and not CAPABILITIES.code_convolutions and scale.meta["val"].numel() == 1:
            scale, block = self.scale_per_channel(weight, scale, block)
        if packs:
            codes = self.insert(weight, operators.pack.default, (codes, type))
        if (codes, scale, type, block) != (weight.args[0], weight.args[1], weight.args[2], list(weight.args[3])):
            self.replace(weight, self.insert_dequantized_weight(weight, codes, scale, type, block, dtype))

    def split_into_blocks(self, weight: Node, scale: Node, block: list[int]) -> Scales | None:
        """Return the scales of a matrix in blocks along its first dim, as TensorRT's INT4 needs, and their block shape.
        Return None if no supported block fits. ``block``: the block shape of ``scale``."""
        shape = weight.meta["val"].shape
        if len(shape) != 2 or block[0] > 1:
            return (scale, block) if len(shape) == 2 and shape[0] % block[0] == 0 else None
        length = next((n for n in BLOCK_LENGTHS if block[0] == -1 and shape[0] % n == 0), None)
        if length is None:
            return None
        rows = self.insert(
            weight, aten.expand.default, (scale, [shape[0] // length, 1 if block[1] == -1 else shape[1]])
        )
        return rows, [length, block[1]]

    def blocks_along_one_dim(self, weight: Node, scale: Node, block: list[int]) -> Scales:
        """Return scales whose blocks are along one dim, and their block shape, such as ``[1, 32]``: along other dims,
        scales are repeated for each index. A scale per channel (``[1, -1]``) stays. ``block``: the shape until now."""
        if not scale.meta["val"].dim() or (sorted(block)[:-1] == [-1] * (len(block) - 1) and max(block) <= 1):
            return scale, block
        shape = weight.meta["val"].shape
        dim = max(range(len(block)), key=lambda d: (block[d] > 1, block[d] == -1, shape[d]))
        for d, each in enumerate(block):
            if d == dim and shape[d] % max(each, 1):
                each = math.gcd(each, shape[d])
                scale = self.repeat_scales(weight, scale, d, block[d] // each, shape[d] // each)
                block = [each if i == d else b for i, b in enumerate(block)]
            elif d != dim and each != 1:
                scale = self.repeat_scales(weight, scale, d, shape[d] if each == -1 else each, shape[d])
                block = [1 if i == d else b for i, b in enumerate(block)]
        return scale, block

    def scale_per_channel(self, weight: Node, scale: Node, block: list[int]) -> Scales:
        """Expand a convolution weight's single scale to a scale per output channel; return scales and block shape. RTX
        1.6 ignores the scales of an FP8 convolution if input and weight have one each (3e5 instead of 9, H200)."""
        if not any(op_kind(user.target) is Kind.CONVOLVES and user.args[1] is weight for user in weight.users):
            return scale, block
        channels, *rest = weight.meta["val"].shape
        one = self.insert(weight, aten.reshape.default, (scale, [1, *[1] * len(rest)]))
        return self.insert(weight, aten.expand.default, (one, [channels, *[1] * len(rest)])), [1, *[-1] * len(rest)]

    def repeat_scales(self, node: Node, scale: Argument, dim: int, times: int, size: int) -> Node:
        """Repeat each scale ``times`` times along a dim, and cut the result to ``size``, by nodes before ``node``."""
        made = self.insert(node, aten.repeat_interleave.self_int, (scale, times, dim))
        return self.insert(node, aten.slice.Tensor, (made, dim, 0, size))


def _permutation_of(transposition: Node, rank: int) -> list[int]:
    """Return the permutation that an operator applies to the dims of a tensor of this rank."""
    sizes = list(range(2, 2 + rank))
    shown = transposition.target(torch.empty(sizes, device="meta"), *transposition.args[1:], **transposition.kwargs)
    return [size - 2 for size in shown.shape]


def _is_constant_one(scale: Argument) -> bool:
    """Return whether a scale is the constant 1 in the graph."""
    if scale.target is aten.ones.default:
        return True
    return scale.target is aten.full.default and scale.args[1] == 1
