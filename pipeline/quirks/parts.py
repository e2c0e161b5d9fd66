"""The input and output of an analysis for a fault: a segment, and places in it."""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import torch
from attrs import define

from pipeline.network.marks import Form
from pipeline.shapes.environment import Symbols

Place: TypeAlias = tuple[Form, str, tuple[str, ...]]
"""A mark without its fault's id: its form, the node, and names of inputs or sizes."""


@define(slots=False, eq=False)
class Part:
    """The nodes of a segment.

    Attributes:
        nodes: the nodes, in order.
        constants: the names of the placeholders that are the segment's constants.
        outputs: the names of the nodes that are the segment's outputs.
        ranges: the ranges of the symbols in the segment.
    """

    nodes: tuple[torch.fx.Node, ...]
    constants: frozenset[str]
    outputs: frozenset[str]
    ranges: Symbols

    @cached_property
    def inside(self) -> frozenset[str]:
        """The names of the nodes."""
        return frozenset(node.name for node in self.nodes)
