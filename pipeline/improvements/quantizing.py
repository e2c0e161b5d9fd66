"""Quantize weights by rounding to nearest: define the supported operators and types, and how to compute scales."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from torch import Tensor

from pipeline.aten.arguments import argument
from pipeline.aten.quantized import TYPES, operators
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Node

LENGTHS: Final = (128, 64, 32)
"""The possible lengths of INT4 blocks along a row of the weight; the first length that divides the row is used."""

WEIGHTS: Final = MappingProxyType({Kind.PROJECTS: "weight", Kind.CONVOLVES: "weight"})
"""The name of the argument with the weight, by the kind of operator."""


def weight_of(node: Node) -> Node | None:
    """Return the weight of a node whose operator supports quantized weights; None for other operators."""
    kind = op_kind(node.target)
    name = WEIGHTS.get(kind) if kind is not None else None
    if name is None or not any(a.name == name for a in node.target._schema.arguments):  # type: ignore[union-attr]
        return None
    found = argument(node, name)
    return found if isinstance(found, Node) else None


def scale_block_shape(weight_type: str, node: Node) -> tuple[int, ...] | None:
    """Return the shape of the blocks of a weight that share a scale: a row, or in INT4 a part of a row. Return None if
    INT4 does not support the operator, or no block length divides the rows."""
    weight = weight_of(node)
    assert weight is not None
    shape = weight.meta["val"].shape
    if weight_type != "int4":
        return (1, *[-1] * (len(shape) - 1))
    if op_kind(node.target) is not Kind.PROJECTS or len(shape) != 2 or shape[0] % 2:
        return None
    length = next((n for n in LENGTHS if shape[1] % n == 0), None)
    return None if length is None else (1, length)


def fake_quantize_weight(weight: Tensor, weight_type: str, block: Sequence[int]) -> Tensor:
    """Quantize and dequantize a weight, with scales from the largest magnitude in each block."""
    rows, *rest = weight.shape
    length = block[-1] if block[-1] > 1 else -1
    groups = weight.float().reshape(rows, -1, length) if length > 1 else weight.float().reshape(rows, 1, -1)
    most = groups.abs().amax(-1) / TYPES[weight_type].high
    scale = most if length > 1 else most.reshape(rows, *[1] * len(rest))
    codes = operators.quantize(weight, scale, weight_type, list(block))
    made: Tensor = operators.dequantize(codes, scale, weight_type, list(block), weight.dtype)
    return made
