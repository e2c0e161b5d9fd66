"""Quantize weights by rounding to nearest: supported operators and types, and the computation of scales."""

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
"""The lengths of INT4's blocks along a row; the first that divides the row is used."""

WEIGHTS: Final = MappingProxyType({Kind.PROJECTS: "weight", Kind.CONVOLVES: "weight"})
"""The name of the weight argument for each kind of operator."""


def weight_of(node: Node) -> Node | None:
    """Return the weight of an operator that can be quantized; None for any other."""
    kind = op_kind(node.target)
    name = WEIGHTS.get(kind) if kind is not None else None
    if name is None or not any(a.name == name for a in node.target._schema.arguments):  # type: ignore[union-attr]
        return None
    found = argument(node, name)
    return found if isinstance(found, Node) else None


def scale_block(type: str, node: Node) -> tuple[int, ...] | None:
    """Return the block that shares a scale: an output, or in INT4 part of a row; None if no length divides the row."""
    weight = weight_of(node)
    assert weight is not None
    shape = weight.meta["val"].shape
    if type != "int4":
        return (1, *[-1] * (len(shape) - 1))
    if op_kind(node.target) is not Kind.PROJECTS or len(shape) != 2 or shape[0] % 2:
        return None
    length = next((n for n in LENGTHS if shape[1] % n == 0), None)
    return None if length is None else (1, length)


def fake_quantize_weight(weight: Tensor, type: str, block: Sequence[int]) -> Tensor:
    """Quantize and dequantize a weight. The greatest magnitude in a block determines its scale."""
    rows, *rest = weight.shape
    length = block[-1] if block[-1] > 1 else -1
    groups = weight.float().reshape(rows, -1, length) if length > 1 else weight.float().reshape(rows, 1, -1)
    most = groups.abs().amax(-1) / TYPES[type].high
    scale = most if length > 1 else most.reshape(rows, *[1] * len(rest))
    codes = operators.quantize(weight, scale, type, list(block))
    made: Tensor = operators.dequantize(codes, scale, type, list(block), weight.dtype)
    return made
