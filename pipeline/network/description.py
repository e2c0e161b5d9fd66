"""Describe a finished TensorRT network as a frozen record that can be printed, compared, digested and interpreted.

The attributes and weights of every layer kind come from one table, attributes.py.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from pipeline.network.attributes import ATTRIBUTES, UNREADABLE, WEIGHTS, Value, read_dims
from pipeline.trt import dtype_name, layer_kind, trt, typed_layer, weights_pointer


@attrs.frozen
class Tensor:
    """A tensor of a network: its name, dtype (by torch's name) and shape, with -1 for a dynamic dim. `dimension_names`
    are set for inputs ("" for an unnamed dim): dims with equal names have equal sizes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    dimension_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = self.dimension_names or ("",) * len(self.shape)
        sizes = ", ".join(name or str(size) for size, name in zip(self.shape, names, strict=True))
        return f"{self.name}: {self.dtype}[{sizes}]"


@attrs.frozen
class Weight:
    """A weight of a network: its name, dtype and shape, without its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@attrs.frozen
class Layer:
    """A layer of a network. An absent optional input is None; an attribute that an input overrides is omitted."""

    kind: str
    name: str
    inputs: tuple[str | None, ...]
    outputs: tuple[Tensor, ...]
    attributes: tuple[tuple[str, Value], ...] = ()
    weights: tuple[tuple[str, str], ...] = ()

    def attribute(self, name: str, default: Value = None) -> Any:
        """Return the attribute of this name, or ``default`` if the layer lacks it."""
        return dict(self.attributes).get(name, default)

    def weight(self, role: str) -> str | None:
        """Return the name of the weight with a role such as "kernel"; None if the layer has no such weight."""
        return dict(self.weights).get(role)

    def __str__(self) -> str:
        outputs = ", ".join(map(str, self.outputs))
        inputs = ", ".join("-" if name is None else name for name in self.inputs)
        settings = "".join(f" {name}={value_text(value)}" for name, value in self.attributes)
        weights = "".join(f" {role}={name!r}" for role, name in self.weights)
        return f"{self.kind} {self.name!r} ({inputs}) -> ({outputs}){settings}{weights}"


@attrs.frozen
class Profile:
    """An optimization profile: a row (input, min, opt, max) for every dynamic input."""

    ranges: tuple[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...]

    def __str__(self) -> str:
        return "".join(
            f"profile {name}: {list(low)} {list(opt)} {list(high)}\n" for name, low, opt, high in self.ranges
        )


@attrs.frozen
class Network:
    """The description of a network. Compare descriptions by `digest`, since `==` treats 1, True and 1.0 alike."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    layers: tuple[Layer, ...]
    weights: tuple[Weight, ...] = ()
    profile: Profile | None = None
    other_profiles: tuple[Profile, ...] = ()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The optimization profiles that the engine is built for; the inputs of a call must fit one of them."""
        return () if self.profile is None else (self.profile, *self.other_profiles)

    def layer(self, name: str) -> Layer:
        """Return the layer of this name; raise a KeyError if there is none."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"network {self.name!r} has no layer {name!r}")

    def weight(self, name: str) -> Weight:
        """Return the weight of this name; raise a KeyError if there is none."""
        for weight in self.weights:
            if weight.name == name:
                return weight
        raise KeyError(f"network {self.name!r} has no weight {name!r}")

    def kinds(self) -> Mapping[str, int]:
        """Return the number of layers of each kind, by the name of the kind."""
        return dict(sorted(Counter(layer.kind for layer in self.layers).items()))

    @property
    def digest(self) -> str:
        """The SHA-256 of the description's text, in hexadecimal digits."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    def __str__(self) -> str:
        lines = [f"network {self.name!r}"]
        lines += [f"input {tensor}" for tensor in self.inputs]
        lines += [f"output {tensor}" for tensor in self.outputs]
        lines += [f"weight {weight}" for weight in self.weights]
        lines += "".join(map(str, self.profiles)).splitlines()
        return "\n".join([*lines, *map(str, self.layers)]) + "\n"


def value_text(value: Value) -> str:
    """Return the text of an attribute's value, without line breaks; values of different types have different texts."""
    if isinstance(value, tuple):
        return f"[{','.join(map(value_text, value))}]"
    return value if isinstance(value, str) and value.isidentifier() else repr(value)


@attrs.frozen
class LayerWeights:
    """One weight of a layer: `values` is the object that TensorRT returns, and `pointer` its memory address or None."""

    layer: str
    role: str
    pointer: int | None
    dtype: str
    count: int
    values: Any = attrs.field(eq=False, repr=False)


WeightAt: TypeAlias = Callable[[str, str], Weight | None]
WeightName: TypeAlias = Callable[[int], Weight | None]


def network_weights(net: "trt.INetworkDefinition") -> Iterator[LayerWeights]:
    """Yield the weights of all layers of a network, in the order of the layers."""
    for index in range(net.num_layers):
        yield from layer_weights(typed_layer(net, index))


def layer_weights(layer: trt.ILayer) -> Iterator[LayerWeights]:
    """Yield the weights of a layer; the layer must already be cast to the class of its kind."""
    for role in WEIGHTS.get(layer_kind(layer), ()):
        values = getattr(layer, role)
        dtype = dtype_name(values.dtype) if isinstance(values, trt.Weights) else str(values.dtype)
        if values.size:
            yield LayerWeights(layer.name, role, weights_pointer(values), dtype, int(values.size), values)


def describe(
    net: "trt.INetworkDefinition",
    *,
    name: str,
    weight_name: WeightName,
    profile: Profile | None = None,
    weight_at: WeightAt | None = None,
) -> Network:
    """Return the description of a finished network.

    `weight_name` returns the named `Weight` at an address. `weight_at`, if given, is asked first: it returns that of a
    layer's name and a role ("kernel"). Raise a ValueError if a layer is invalid, cannot be read, or has weights without
    a name; empty weights need none.
    """
    return _NetworkReader(weight_name, weight_at).describe_network(net, name, profile)


class _NetworkReader:
    """The state of reading a network: the names assigned so far, by ``id`` of the tensor, and references to the
    tensors. The references keep ids valid: the bindings return the same object for a tensor only while it is alive."""

    def __init__(self, weight_name: WeightName, weight_at: WeightAt | None) -> None:
        self.weight_name, self.weight_at = weight_name, weight_at
        self.names: dict[int, str] = {}
        self.taken: set[str] = set()
        self.kept: list[Any] = []
        self.bounds: dict[str, list[object]] = {}
        self.weights: dict[str, Weight] = {}

    def describe_network(self, net: trt.INetworkDefinition, name: str, profile: Profile | None) -> Network:
        inputs = tuple(self.describe_input(net.get_input(i), f"input.{i}") for i in range(net.num_inputs))
        outputs = [net.get_output(i) for i in range(net.num_outputs)]
        for index, output in enumerate(outputs):
            self.tensor_name(output, f"output.{index}")
        handles = [typed_layer(net, i) for i in range(net.num_layers)]
        taken: set[str] = set()
        names = [_make_unique(layer.name or f"layer.{i}", taken) for i, layer in enumerate(handles)]
        for layer, own in zip(handles, names, strict=True):  # first: a recurrence reads a tensor of a later layer
            for index in range(layer.num_outputs):
                self.tensor_name(layer.get_output(index), f"{own}.{index}")
        layers = tuple(self.describe_layer(layer, own) for layer, own in zip(handles, names, strict=True))
        bindings = tuple(self.describe_tensor(output, "") for output in outputs)
        return Network(name, inputs, bindings, layers, tuple(self.weights.values()), profile)

    def tensor_name(self, tensor: trt.ITensor, default_name: str) -> str:
        if id(tensor) not in self.names:
            self.kept.append(tensor)
            self.names[id(tensor)] = _make_unique(tensor.name or default_name, self.taken)
        return self.names[id(tensor)]

    def describe_tensor(self, tensor: trt.ITensor, default_name: str) -> Tensor:
        name, shape = self.tensor_name(tensor, default_name), read_dims(tensor, "shape")
        if shape is None:
            raise ValueError(f"tensor {name!r} has no shape: its layer is invalid, see TensorRT's log")
        return Tensor(name, dtype_name(tensor.dtype), shape)

    def describe_input(self, tensor: trt.ITensor, default_name: str) -> Tensor:
        found = self.describe_tensor(tensor, default_name)
        names = tuple(tensor.get_dimension_name(i) or "" for i in range(len(found.shape)))
        return attrs.evolve(found, dimension_names=names if any(names) else ())

    def describe_layer(self, layer: trt.ILayer, name: str) -> Layer:
        kind = layer_kind(layer)
        if kind in UNREADABLE:
            raise ValueError(f"cannot describe layer {name!r} of kind {kind}: {UNREADABLE[kind]}")
        handles = [layer.get_input(i) for i in range(layer.num_inputs)]
        given = {i for i, handle in enumerate(handles) if handle is not None}  # an input may replace an attribute
        rows = [a for a in ATTRIBUTES.get(kind, ()) if a.unless not in given and a.exists(layer, a.name)]
        return Layer(
            kind=kind,
            name=name,
            inputs=tuple(None if handle is None else self.tensor_name(handle, "") for handle in handles),
            outputs=tuple(self.describe_tensor(layer.get_output(i), f"{name}.{i}") for i in range(layer.num_outputs)),
            attributes=(*self.boundary_owner(layer), *((a.name, a.type.read(layer, a.name)) for a in rows)),
            weights=tuple(self.role_and_name(held) for held in layer_weights(layer)),
        )

    def boundary_owner(self, layer: trt.ILayer) -> Iterator[tuple[str, Value]]:
        """Yield ("loop", its number) for a layer at a loop's boundary, also "conditional", "attention"; else
        nothing."""
        for what in ("loop", "conditional", "attention"):
            if hasattr(layer, what):
                known = self.bounds.setdefault(what, [])
                owner = getattr(layer, what)
                if not any(owner is other for other in known):
                    known.append(owner)
                yield what, next(index for index, other in enumerate(known) if owner is other)

    def role_and_name(self, weights: LayerWeights) -> tuple[str, str]:
        """Return the role and name of a layer's weight; raise a ValueError if no name, or a wrong one, was recorded."""
        weight = self.weight_at(weights.layer, weights.role) if self.weight_at is not None else None
        kind = f"the {weights.role} of layer {weights.layer!r}"
        if weight is None and weights.pointer is not None:
            weight = self.weight_name(weights.pointer)
        if weight is None:
            raise ValueError(f"no name was recorded for {kind} ({weights.count} x {weights.dtype}): call record_weight")
        if math.prod(weight.shape) != weights.count:
            raise ValueError(f"{kind} has {weights.count} elements, but its recorded weight is {weight}")
        if self.weights.setdefault(weight.name, weight) != weight:
            raise ValueError(f"two weights have the name {weight.name!r}: {weight} and {self.weights[weight.name]}")
        return weights.role, weight.name


def _make_unique(name: str, used: set[str]) -> str:
    """Return `name`, or the first unused of name#2, name#3 …, since TensorRT allows duplicates; add it to `used`."""
    candidates = itertools.chain([name], (f"{name}#{count}" for count in itertools.count(2)))
    given = next(candidate for candidate in candidates if candidate not in used)
    used.add(given)
    return given
