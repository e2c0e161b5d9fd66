"""Find the layers inside each region (a loop or a conditional), from the boundary layers of the region."""

from collections.abc import Mapping

import attrs

from pipeline.network.description import Layer, Network

BOUNDARIES: Mapping[str, str] = {
    "TRIP_LIMIT": "loop",
    "ITERATOR": "loop",
    "RECURRENCE": "loop",
    "LOOP_OUTPUT": "loop",
    "CONDITION": "conditional",
    "CONDITIONAL_INPUT": "conditional",
    "CONDITIONAL_OUTPUT": "conditional",
}
EXITS = ("LOOP_OUTPUT", "CONDITIONAL_OUTPUT")
ENTRIES = ("ITERATOR", "RECURRENCE", "CONDITIONAL_INPUT")


def region_of(layer: Layer) -> str | None:
    """Return the region of a loop's or conditional's boundary layer, such as "loop 0"; None for any other layer."""
    what = BOUNDARIES.get(layer.kind)
    return None if what is None else f"{what} {layer.attribute(what)}"


@attrs.frozen
class Flow:
    """A network's regions (loops and conditionals), named such as "loop 0", for the reference executor.

    producers: the layer that computes each tensor. regions: each region's boundary layers (of the kinds `BOUNDARIES`).
        inside: the names of the regions that each tensor is in.
    """

    producers: Mapping[str, Layer]
    regions: Mapping[str, tuple[Layer, ...]]
    inside: Mapping[str, frozenset[str]]

    def boundary_layers(self, region: str | None, kind: str) -> tuple[Layer, ...]:
        """Return a region's boundary layers of one kind, such as "ITERATOR"."""
        return tuple(layer for layer in self.regions[region or ""] if layer.kind == kind)

    def regions_around(self, layer: Layer) -> frozenset[str]:
        """Return the names of the regions that a layer is in: those of its outputs, or of its inputs if it has none."""
        names = [tensor.name for tensor in layer.outputs] or list(input_names(layer))
        return frozenset().union(*(self.inside.get(name, frozenset()) for name in names))


def input_names(layer: Layer) -> tuple[str, ...]:
    """Return the names of a layer's inputs, without optional inputs that are absent."""
    return tuple(name for name in layer.inputs if name is not None)


def read_flow(network: Network) -> Flow:
    """Determine the control flow of a network."""
    producers = {tensor.name: layer for layer in network.layers for tensor in layer.outputs}
    regions: dict[str, list[Layer]] = {}
    for layer in network.layers:
        if (region := region_of(layer)) is not None:
            regions.setdefault(region, []).append(layer)
    frozen = {region: tuple(layers) for region, layers in regions.items()}
    return Flow(producers, frozen, _regions_around_tensors(network, frozen) if frozen else {})


def _regions_around_tensors(network: Network, regions: Mapping[str, tuple[Layer, ...]]) -> dict[str, frozenset[str]]:
    """Return the names of the regions that each tensor is in. ``regions``: as in `Flow`.

    The search is repeated until nothing changes: a RECURRENCE layer reads a tensor that a later layer computes.
    """
    inside: dict[str, frozenset[str]] = {}
    grows = True
    while grows:
        grows = False
        for layer in network.layers:
            around = _regions_around_layer(layer, regions, inside)
            for tensor in layer.outputs:
                grows = grows or around != inside.get(tensor.name, frozenset())
                inside[tensor.name] = around
    return inside


def _regions_around_layer(
    layer: Layer, regions: Mapping[str, tuple[Layer, ...]], around: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """Return the names of the regions that a layer's outputs are in; the outputs of an exit layer (`EXITS`) of a region
    are outside of it. ``regions``: as in `Flow`. ``around``: the regions of each tensor found so far, by its name."""
    region = region_of(layer)
    sources = regions[region] if region is not None and layer.kind in EXITS else (layer,)
    found = frozenset().union(*(around.get(name, frozenset()) for source in sources for name in input_names(source)))
    if region is None:
        return found
    return found | {region} if layer.kind in ENTRIES else found - {region}


def needed_layers(network: Network, flow: Flow) -> frozenset[str]:
    """Return the names of all layers on which the network's outputs and ASSERTION layers depend."""
    found: set[str] = set()
    waiting = [flow.producers[tensor.name] for tensor in network.outputs if tensor.name in flow.producers]
    waiting += [layer for layer in network.layers if layer.kind == "ASSERTION"]
    while waiting:
        layer = waiting.pop()
        if layer.name in found:
            continue
        found.add(layer.name)
        region = region_of(layer)
        waiting += flow.regions[region] if region is not None and layer.kind in EXITS else ()
        waiting += [flow.producers[name] for name in input_names(layer) if name in flow.producers]
    return frozenset(found)
