"""Define ``canonical``: a network's structure without its names, for comparing networks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from types import MappingProxyType

from attrs import define, field, frozen

from pipeline.frozen import FrozenDict
from pipeline.network.description import Layer, Network, Tensor

NOWHERE: Mapping[str, str] = MappingProxyType({})


@define
class _Numbering:
    """Numbers for names, in order of first use: ``t0``, ``t1`` …"""

    letter: str
    known: dict[str, str] = field(factory=dict)
    _next: count[int] = field(factory=count)

    def __getitem__(self, name: str) -> str:
        if name not in self.known:
            self.known[name] = f"{self.letter}{next(self._next)}"
        return self.known[name]


@frozen
class Canonical:
    """A network's description with numbers instead of names for tensors, layers, weights and dimensions.

    Attributes:
        text: equal for networks that differ only in names.
        bindings: the names of the inputs and outputs, in order.
        weights: the names of the weights, in the order of their numbers.
    """

    text: str
    bindings: tuple[str, ...]
    weights: tuple[str, ...]


def canonical(network: Network, sizes: Collection[str] = (), places: Mapping[str, str] = NOWHERE) -> Canonical:
    """Describe a network by structure alone.

    Args:
        network: the network.
        sizes: the names of inputs that are sizes, not tensors.
        places: by the name of an input or output, the program's value that it is.
    """
    tensors, weights, dimensions = _Numbering("t"), _Numbering("w"), _Numbering("d")
    lines = [_input(tensor, tensors, dimensions, tensor.name in sizes) for tensor in network.inputs]
    rows = [_layer(layer, tensors, weights) for layer in network.layers]
    outputs = [f"output {_renamed(tensor, tensors)}" for tensor in network.outputs]
    known = {weight.name: weight for weight in network.weights}
    weighed = [
        f"weight {number} {known[name].dtype}{list(known[name].shape)}" for name, number in weights.known.items()
    ]
    bindings = tuple(tensor.name for tensor in (*network.inputs, *network.outputs))
    placed = [f"place {places.get(name, '')}" for name in bindings]
    text = "\n".join([*lines, *_ranges(network, tensors), *rows, *outputs, *placed, *weighed])
    return Canonical(text, bindings, tuple(weights.known))


def _input(tensor: Tensor, tensors: _Numbering, dimensions: _Numbering, is_size: bool) -> str:
    names = tuple(name and dimensions[name] for name in tensor.dimension_names)
    return f"{'size' if is_size else 'input'} {Tensor(tensors[tensor.name], tensor.dtype, tensor.shape)} {names}"


def _renamed(tensor: Tensor, tensors: _Numbering) -> Tensor:
    return Tensor(tensors[tensor.name], tensor.dtype, tensor.shape)


def _layer(layer: Layer, tensors: _Numbering, weights: _Numbering) -> str:
    inputs = tuple(None if name is None else tensors[name] for name in layer.inputs)
    outputs = tuple(_renamed(tensor, tensors) for tensor in layer.outputs)
    held = tuple((role, weights[name]) for role, name in layer.weights)
    return str(Layer(layer.kind, "", inputs, outputs, layer.attributes, held))


def _ranges(network: Network, tensors: _Numbering) -> Iterator[str]:
    for place, profile in enumerate(network.profiles):
        for name, low, opt, high in profile.ranges:
            yield f"range{f' {place}' * bool(place)} {tensors[name]} {list(low)} {list(opt)} {list(high)}"


def renames(ours: Iterable[str], theirs: Iterable[str]) -> FrozenDict[str, str]:
    """Return the mapping from the names in ``ours`` to those at the same positions in ``theirs``, if they differ."""
    return FrozenDict({our: their for our, their in zip(ours, theirs, strict=True) if our != their})
