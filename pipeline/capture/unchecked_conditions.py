"""Conditions on the data that a program assumes, and that engines do not check."""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Final

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from pipeline.errors import line_of
from pipeline.export_fixes import ExportNotes

aten = torch.ops.aten
log = logging.getLogger(__name__)

ASSERTS: Final = (aten._assert_async.default, aten._assert_async.msg)
"""The assertions on data in an exported graph; programs leave them out."""
PICKS: Final = (aten.index.Tensor, aten.masked_select.default)
"""Operators whose result has as many elements as a mask picks."""


def warn_of_unchecked(exported: ExportedProgram, notes: ExportNotes) -> None:
    """Warn of conditions on the data that the program assumes: those that the model checks, and that a mask selects as
    many elements as the model needs. For another number eager raises an error."""
    checks, picks = dict.fromkeys(notes.checks), dict[str, None]()
    given = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    data: set[torch.fx.Node] = set()
    for node in exported.graph.nodes:
        if node.name in given or not data.isdisjoint(node.all_input_nodes):
            data.add(node)
        if node.target in ASSERTS or _picks_a_fixed_number(node, data):
            place = line_of(node.meta).partition(",")[0] or node.name
            (checks if node.target in ASSERTS else picks)[place] = None
    if checks:
        log.warning("the model checks its data at %s: engines assume that this holds", ", ".join(checks))
    if picks:
        why = "the model needs a fixed number of masked elements at %s: engines assume it, and do not check it"
        log.warning(why, ", ".join(picks))


def _picks_a_fixed_number(node: torch.fx.Node, data: Set[torch.fx.Node]) -> bool:
    """Return whether a data-dependent mask is assumed to select a fixed number of elements: ``x[mask].view(4, 8)``."""
    if node.target not in PICKS or free_unbacked_symbols(node.meta["val"]):
        return False
    return any(each in data and _is_mask(each) for each in tree_leaves(node.args[1]))


def _is_mask(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)
