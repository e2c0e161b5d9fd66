"""Compute the cache key of an engine: the digest of everything that reaches it, independent of names."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import MappingProxyType

import torch
from attrs import define, field, frozen

from pipeline.artifact.sums import THREADS
from pipeline.build.plans import Order
from pipeline.network.description import Layer, Network, Tensor
from pipeline.settings import ENGINE
from pipeline.trt import CAPABILITIES, LIBRARY

FORMAT = "engine 1"
"""What keys and entries are made of. Another number where either changes: older entries are then never found."""

NOWHERE: Mapping[str, str] = MappingProxyType({})


@define
class _Numbering:
    """Numbers for names, in the order in which they are met: ``t0``, ``t1`` …"""

    letter: str
    known: dict[str, str] = field(factory=dict)
    _next: count[int] = field(factory=count)

    def __getitem__(self, name: str) -> str:
        if name not in self.known:
            self.known[name] = f"{self.letter}{next(self._next)}"
        return self.known[name]


@frozen
class Canonical:
    """A network's description in which tensors, layers, weights and dimensions have numbers for names.

    Attributes:
        text: equal for two networks that differ in names alone.
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
        sizes: the inputs that are sizes and no tensors.
        places: which of the program's values each input and output of the network is, by name.
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


def digests(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The SHA-256 of each tensor's bytes, computed on threads: most of what a warm compilation reads is tensors."""
    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip(weights, threads.map(tensor_digest, weights.values()), strict=True))


def tensor_digest(tensor: torch.Tensor) -> str:
    """The SHA-256 of a tensor's bytes, in hexadecimal digits."""
    return bytes_digest(tensor_bytes(tensor))


def bytes_digest(data: memoryview) -> str:
    """The SHA-256 of bytes, in hexadecimal digits. Other threads run meanwhile."""
    return hashlib.sha256(data).hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor: where they lie, if it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def engine_key(order: Order, form: Canonical, values: Mapping[str, str]) -> str:
    """The key of an engine, 64 hexadecimal digits.

    It changes with the layers, their arguments and wiring; shapes, ranges and dtypes; the settings that reach the
    builder; the library, its version and its targets; the machine's platform and NVIDIA_TF32_OVERRIDE. Names of nodes,
    tensors, weights and sizes do not change it.

    Args:
        order: the network and its settings.
        form: the network by structure, as `canonical` gives it.
        values: the SHA-256 of each weight whose value the engine depends on, by name.
    """
    settings = (f"{name}={getattr(order.settings, name)!r}" for name in ENGINE)
    held = (f"{i} {values.get(name, 'refitted')}" for i, name in enumerate(form.weights))
    streams = f"streamed={order.settings.weight_streaming_budget is not None}"
    parts = (FORMAT, form.text, *held, f"refit={order.refit_flags}", streams, *settings, *around())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def around() -> Iterator[str]:
    """Everything that reaches an engine without being part of the program."""
    yield LIBRARY
    yield f"{platform.system()} {platform.machine()}"
    yield f"NVIDIA_TF32_OVERRIDE={os.environ.get('NVIDIA_TF32_OVERRIDE', '')}"
    if not CAPABILITIES.compute_capabilities and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        yield f"{gpu.name} {gpu.major}.{gpu.minor} {gpu.multi_processor_count}"
