"""Nodes of ONNX that onnx2fx 0.0.1 converts to other results than onnx's own test cases have: they are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
from attrs import frozen

from pipeline.aten.types import Argument

Proto: TypeAlias = Argument


@frozen
class Node:
    """A node: its attributes, the names, dtypes and constant arrays of its inputs, and the dtype of its output."""

    attributes: Mapping[str, Argument]
    names: tuple[str, ...]
    dtypes: tuple[np.dtype[Argument] | None, ...]
    output: np.dtype[Argument] | None
    arrays: tuple[Argument, ...]

    def word(self, name: str, default: str) -> str:
        """Return an attribute that is a word."""
        return str(self.attributes.get(name, default.encode()).decode())

    def has_input(self, place: int) -> bool:
        """Return whether an optional input is there."""
        return place < len(self.names) and bool(self.names[place])


def _always(node: Node) -> bool:
    return True


def _resize(node: Node) -> bool:
    """Return whether a Resize is not one of torch's ``interpolate``."""
    mode, place = node.word("mode", "nearest"), node.word("coordinate_transformation_mode", "half_pixel")
    scales = node.arrays[2] if node.has_input(2) else np.ones(1)
    whole = scales is not None and bool(np.all(scales == np.round(scales)))
    if mode == "nearest":
        nearest = place, node.word("nearest_mode", "round_prefer_floor")
        grows = node.has_input(2) and nearest == ("half_pixel", "round_prefer_floor")
        right = grows or nearest == ("asymmetric", "floor")
    else:
        coefficient = node.attributes.get("cubic_coeff_a", -0.75)
        right = place in ("half_pixel", "align_corners") and abs(coefficient + 0.75) < 1e-6
    others = any(node.attributes.get(name) for name in ("antialias", "exclude_outside", "axes"))
    return not (right and whole) or others or node.word("keep_aspect_ratio_policy", "stretch") != "stretch"


def _power(node: Node) -> bool:
    """Return whether an integer is raised to a float, which ONNX rounds to an integer."""
    base, exponent = (dtype.kind if dtype is not None else "" for dtype in node.dtypes)
    return base in "iu" and exponent == "f"


WRONG: Final[Mapping[str, Callable[[Node], bool]]] = {
    "Attention": _always,
    "BatchNormalization": lambda node: bool(node.attributes.get("training_mode")),
    "ConvInteger": _always,
    "Dropout": lambda node: node.has_input(2),
    "DynamicQuantizeLinear": _always,
    "EyeLike": _always,
    "LpNormalization": _always,
    "Pad": lambda node: node.has_input(3) or node.word("mode", "constant") == "wrap",
    "Pow": _power,
    "QLinearMatMul": _always,
    "QuantizeLinear": lambda node: node.output is None or node.output.itemsize != 1,
    "ReduceMax": lambda node: node.dtypes[0] == np.bool_,
    "Resize": _resize,
    "SoftmaxCrossEntropyLoss": _always,
    "SpaceToDepth": lambda node: node.word("mode", "DCR") != "DCR",
    "SplitToSequence": _always,
    "Swish": _always,
}
"""By the operator, whether a node is wrong."""


def wrong(file: Proto, nodes: Argument) -> Argument:
    """Return the first node of a file, with inferred dtypes, that onnx2fx converts wrongly, or None."""
    from onnx import helper, numpy_helper

    values = (*file.graph.value_info, *file.graph.input, *file.graph.output)
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    kinds |= {each.name: each.data_type for each in file.graph.initializer}
    dtypes = {name: helper.tensor_dtype_to_np_dtype(kind) for name, kind in kinds.items() if kind}
    held = {each.name: each for each in file.graph.initializer}
    for node in nodes:
        check = WRONG.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if check is None:
            continue
        arrays = tuple(numpy_helper.to_array(held[name]) if name in held else None for name in node.input)
        given = tuple(dtypes.get(name) for name in node.input)
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if check(Node(attributes, tuple(node.input), given, dtypes.get(node.output[0]), arrays)):
            return node
    return None
