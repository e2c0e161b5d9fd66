"""Mark where the faults of the table are avoided in a segment."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pipeline.network.marks import Mark
from pipeline.quirks.applied import applies
from pipeline.quirks.parts import Part
from pipeline.quirks.table import QUIRKS
from pipeline.shapes.environment import Symbols


def marks_of(
    nodes: Iterable[torch.fx.Node],
    ranges: Symbols,
    constants: Iterable[str] = (),
    outputs: Iterable[str] = (),
) -> tuple[Mark, ...]:
    """Return the marks of a segment: for each fault that applies, the places that its analysis finds.

    Args:
        nodes: the nodes, in order.
        ranges: the values of each symbol in the segment.
        constants: the names of the placeholders that are the segment's constants.
        outputs: the names of the nodes that are the segment's outputs.
    """
    part = Part(tuple(nodes), frozenset(constants), frozenset(outputs), ranges)
    return tuple(
        Mark(quirk.id, *place)
        for quirk in QUIRKS
        if quirk.places is not None and applies(quirk.id)
        for place in quirk.places(part)
    )
