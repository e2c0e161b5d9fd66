"""Validate a network description from a file: every name that a layer reads exists, and there is no cycle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final

from pipeline.network.attributes import ATTRIBUTES, exists_always
from pipeline.network.description import Layer, Network, Tensor, Weight

MOST_BYTES: Final = 1 << 44
"""The maximum size in bytes of a tensor in a description."""

_EXITS: Final[Mapping[str, str]] = {"LOOP_OUTPUT": "loop", "CONDITIONAL_OUTPUT": "conditional"}
_BOUNDARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "loop": ("TRIP_LIMIT", "ITERATOR", "RECURRENCE", "LOOP_OUTPUT"),
    "conditional": ("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT"),
}
_OWNERS: Final = (*_BOUNDARIES, "attention")
"""The attributes of boundary layers: which loop, conditional or attention the layer belongs to."""


def first_network_error(network: Network) -> str:
    """Return the first reason why a network description is invalid; an empty string if it is valid."""
    return next(_network_errors(network), "")


def _network_errors(network: Network) -> Iterator[str]:
    made = [tensor.name for tensor in network.inputs] + [t.name for layer in network.layers for t in layer.outputs]
    layers, weights = [layer.name for layer in network.layers], [weight.name for weight in network.weights]
    for what, names in ("tensors", made), ("layers", layers), ("weights", weights):
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            yield f"two {what} are called {twice[0][:80]!r}"
    if strange := next((n for n in (network.name, *made, *layers, *weights) if not n.isprintable()), ""):
        yield f"the name {strange[:80]!r} does not print on one line"
    known, held = {*made}, {*weights}
    for layer in network.layers:
        if absent := [name for name in layer.inputs if name is not None and name not in known]:
            yield f"layer {layer.name[:80]!r} reads {absent[0][:80]!r}, which nothing makes"
        if why := _layer_error(layer):
            yield f"layer {layer.name[:80]!r} {why}"
        if absent := [name for _, name in layer.weights if name not in held]:
            yield f"layer {layer.name[:80]!r} has the weight {absent[0][:80]!r}, which the network has not"
    if absent := [tensor.name for tensor in network.outputs if tensor.name not in known]:
        yield f"nothing makes its output {absent[0][:80]!r}"
    rows: list[Tensor | Weight] = [*network.inputs, *network.outputs, *network.weights]
    for row in (*rows, *(tensor for layer in network.layers for tensor in layer.outputs)):
        if min(row.shape, default=0) < -1 or len(row.shape) > 64:
            yield f"{row.name[:80]!r} has no sizes {list(row.shape)[:8]}"
        elif math.prod(map(abs, row.shape)) > MOST_BYTES // 8:
            yield f"{row.name[:80]!r} claims more than {MOST_BYTES} bytes"
    yield from _cycle_errors(network)


def _layer_error(layer: Layer) -> str:
    """Return why a layer's attributes or weights are incomplete or invalid; empty if they are complete and valid."""
    given, rows = Counter(name for name, _ in layer.attributes), ATTRIBUTES.get(layer.kind, ())
    present = {place for place, name in enumerate(layer.inputs) if name is not None}
    needed = {row.name for row in rows if row.exists is exists_always and row.unless not in present}
    if strange := given.keys() - {*_OWNERS, *(row.name for row in rows)}:
        return f"has the attribute {min(strange)[:40]!r}, which no {layer.kind[:40]} has"
    if missing := needed - given.keys():
        return f"lacks the attribute {min(missing)!r}"
    if given.total() > len(given):
        return "has an attribute twice"
    shape = layer.outputs[0].shape if layer.kind == "CONSTANT" and layer.outputs else (0,)
    return "" if layer.weight("weights") or 0 in shape else "is a constant without a weight"


def _cycle_errors(network: Network) -> Iterator[str]:
    """Yield an error for a layer that depends on its own result. A recurrence layer depends on its first input only,
    the initial value. Its second input is computed in the loop: only the loop's outputs depend on it."""
    makers = {tensor.name: layer.name for layer in network.layers for tensor in layer.outputs}
    regions: dict[tuple[str, object], list[Layer]] = {}
    for layer in network.layers:
        for what, kinds in _BOUNDARIES.items():
            if layer.kind in kinds:
                regions.setdefault((what, repr(layer.attribute(what))), []).append(layer)
    needs: dict[str, set[str]] = {}
    for layer in network.layers:
        inputs = [*(layer.inputs[:1] if layer.kind == "RECURRENCE" else layer.inputs)]
        if layer.kind in _EXITS:
            what = _EXITS[layer.kind]
            bounds = regions[what, repr(layer.attribute(what))]
            inputs += [name for bound in bounds for name in bound.inputs if bound.kind not in _EXITS]
        needs[layer.name] = {makers[name] for name in inputs if name in makers}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        yield f"layer {error.args[1][0][:80]!r} needs its own result"
