"""Describe a network with numbers instead of names, so that networks of equal structure compare equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from types import MappingProxyType

from attrs import frozen

from pipeline.frozen import FrozenDict
from pipeline.network.description import Layer, Network, Tensor

NOWHERE: Mapping[str, str] = MappingProxyType({})


def _numbering(letter: str) -> defaultdict[str, str]:
    """Return a dictionary that assigns numbered names, ``t0``, ``t1`` …, to names in order of first use."""
    numbers = count()
    return defaultdict(lambda: f"{letter}{next(numbers)}")


@frozen
class Canonical:
    """A network's description with numbers instead of names for tensors, layers, weights and dimensions.

    Attributes:
        text: the description; it is equal for networks that differ only in names.
        bindings: the names of the inputs and outputs, in order.
        weights: the original names of the weights, in the order of their numbers.
    """

    text: str
    bindings: tuple[str, ...]
    weights: tuple[str, ...]


def canonical(network: Network, sizes: Collection[str] = (), locations: Mapping[str, str] = NOWHERE) -> Canonical:
    """Return a network's description with numbers (``t0``, ``w0``) instead of names, so that networks of the same
    structure are found to be equal and share an engine.

    Args:
        network: the network.
        sizes: the names of inputs that are sizes, not tensors.
        locations: what each engine input or output is in the program (``input 0``), by name.
    """
    tensors, weights, dimensions = _numbering("t"), _numbering("w"), _numbering("d")

    def renamed(tensor: Tensor) -> Tensor:
        return Tensor(tensors[tensor.name], tensor.dtype, tensor.shape)

    lines = []
    for tensor in network.inputs:
        names = tuple(name and dimensions[name] for name in tensor.dimension_names)
        lines.append(f"{'size' if tensor.name in sizes else 'input'} {renamed(tensor)} {names}")
    for place, profile in enumerate(network.profiles):
        for name, low, opt, high in profile.ranges:
            lines.append(f"range{f' {place}' * bool(place)} {tensors[name]} {list(low)} {list(opt)} {list(high)}")
    for layer in network.layers:
        inputs = tuple(None if name is None else tensors[name] for name in layer.inputs)
        held = tuple((role, weights[name]) for role, name in layer.weights)
        lines.append(str(Layer(layer.kind, "", inputs, tuple(map(renamed, layer.outputs)), layer.attributes, held)))
    lines += [f"output {renamed(tensor)}" for tensor in network.outputs]
    bindings = tuple(tensor.name for tensor in (*network.inputs, *network.outputs))
    lines += [f"place {locations.get(name, '')}" for name in bindings]
    known = {weight.name: weight for weight in network.weights}
    lines += [f"weight {number} {known[name].dtype}{list(known[name].shape)}" for name, number in weights.items()]
    return Canonical("\n".join(lines), bindings, tuple(weights))


def map_differing_names(names: Iterable[str], others: Iterable[str]) -> FrozenDict[str, str]:
    """Return a mapping from each of ``names`` to the name at its position in ``others``, where the two differ."""
    return FrozenDict({our: their for our, their in zip(names, others, strict=True) if our != their})
