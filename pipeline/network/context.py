"""Define ``ConversionContext``: the network to which converters add layers, and the state of the conversion."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import sympy
import torch
from attrs import define, field, frozen

from pipeline.aten.tensor_type import raw_bytes
from pipeline.errors import PipelineError
from pipeline.network.description import Weight
from pipeline.network.handle import low_bit_trt_weights
from pipeline.network.marks import Marks
from pipeline.recipes import narrow_float64
from pipeline.records.wording import kind_of
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import Shape, Symbols, is_host_int, shape_of
from pipeline.trt import Log, as_weights, to_trt, trt

T = TypeVar("T")


@frozen
class SymbolicInt:
    """A dynamic size: an expression over the program's symbols. Converters receive a `SymbolicInt` for each symbolic
    int in the graph, and pass it to ``pipeline.impl`` like an int; ``base.shape_tensor`` converts it to a tensor."""

    expr: sympy.Expr

    def __str__(self) -> str:
        return str(self.expr)


class NetworkError(PipelineError):
    """TensorRT rejected a layer. ``convert`` adds the node's name and raises it as ``pipeline.ConversionError``."""


@define(eq=False)
class ConversionContext:
    """The state of one network under construction.

    Attributes:
        net: the ``INetworkDefinition``; converters append to it.
        compilation_settings: the user's settings.
        requires_output_allocator: whether an output's shape is data-dependent.
        weight_refit_map: the recorded weights, by their names in the engine.
        cpu_weights_reference_holder: tensors whose memory the network uses, which must stay alive until the engine is
            built.
        log: TensorRT's messages.
        node: the graph node being converted; ``node.meta["val"]`` is its fake tensor.
        symbols: for each symbol, the input and dim from which to read it, or the input whose value it is.
        constant_names: names of the constants passed to converters, by ``id`` of the tensor.
        constants: these constants themselves.
        literals: the weights that are not parameters, by content-derived names.
        weights: the names of all weights, by memory address.
        recorded: the names under which converters recorded weights, by memory address.
        made: the results that the method `cached` keeps.
        squeezed: for a convolution's result without added dims, by ``id``: the result with these dims, the dims, and
            the tensor itself; `base.cast` then casts before it removes the dims.
        rounded_apart: for a tensor that must be cast in a kernel of its own, by ``id``: the dtypes for which this
            holds, the name of the kernel bug, and the tensor itself.
        held_sizes: for a tensor that stores a size, by ``id``: the size, and the tensor itself.
        stand_ins: objects that replace the network's tensors in converters written for other compilers.
        shapes: tensors with their symbolic shapes (ints and expressions), by ``id`` of the tensor.
        ranges: the range of each symbol.
        marks: how the network avoids bugs of TensorRT's kernels, at which nodes.
        in_place: tensors that share memory with a network's input; as outputs they are not copied.
        inside: the names of the segment's nodes.
        constant_nodes: the names of the segment's nodes that are constants.
    """

    net: trt.INetworkDefinition
    compilation_settings: CompilationSettings
    log: Log
    requires_output_allocator: bool = False
    weight_refit_map: dict[str, torch.Tensor] = field(factory=dict)
    cpu_weights_reference_holder: list[torch.Tensor] = field(factory=list)
    node: torch.fx.Node | None = None
    symbols: dict[str, tuple[Any, int | None]] = field(factory=dict)
    constant_names: Mapping[int, str] = field(factory=dict)
    constants: Sequence[torch.Tensor] = ()
    literals: dict[str, torch.Tensor] = field(factory=dict)
    weights: dict[int, Weight] = field(factory=dict)
    recorded: dict[int, str] = field(factory=dict)
    made: dict[tuple[int | str, ...], tuple[Any, object]] = field(factory=dict)
    squeezed: dict[int, tuple[trt.ITensor, list[int], trt.ITensor]] = field(factory=dict)
    rounded_apart: dict[int, tuple[tuple[torch.dtype, ...], str, trt.ITensor]] = field(factory=dict)
    held_sizes: dict[int, tuple[int | SymbolicInt, trt.ITensor]] = field(factory=dict)
    stand_ins: object = None
    shapes: dict[int, tuple[Any, Shape]] = field(factory=dict)
    ranges: Symbols = field(factory=dict)
    marks: Marks = field(factory=Marks)
    in_place: list[Any] = field(factory=list)
    inside: frozenset[str] = frozenset()
    constant_nodes: frozenset[str] = frozenset()
    _used: Counter[str] = field(factory=Counter)

    def record_shape(self, tensor: trt.ITensor, shape: Shape) -> None:
        """Record a tensor's symbolic shape, so that equal sizes are recognized, and layers take a data-dependent size
        from the first tensor that has it."""
        self.shapes[id(tensor)] = (tensor, shape)
        for dim, size in enumerate(shape):
            if not isinstance(size, int) and (size.is_Symbol or is_host_int(size)):
                self.symbols.setdefault(str(size), (tensor, dim))

    def record_result_shapes(self, result: Any, fake_value: Any) -> None:
        """Record the symbolic shapes of a node's results, as the node's fake tensors (``fake_value``) have them."""
        if isinstance(result, trt.ITensor) and isinstance(fake_value, torch.Tensor):
            self.record_shape(result, shape_of(fake_value))
        elif isinstance(result, (tuple, list)) and isinstance(fake_value, (tuple, list)):
            for made, each in zip(result, fake_value, strict=False):
                self.record_result_shapes(made, each)

    def cached(self, kind: str, source: object, make: Callable[[], T], *indices: int) -> T:
        """Return the result of ``make``, which is called once for each kind, source and indices. A source other than an
        int or string is identified by its ``id``, so the cache keeps it alive."""
        key = (kind, source if isinstance(source, int | str) else id(source), *indices)
        if key not in self.made:
            self.made[key] = make(), source
        made: T = self.made[key][0]
        return made

    def make_unique_name(self, name: str) -> str:
        """Return a layer name that is not in use: the name itself if possible, else ``name.1``, ``name.2`` …"""
        count = self._used[name]
        self._used[name] += 1
        return self.make_unique_name(f"{name}.{count}") if count else name

    def add(self, name: str, kind: str, *args: object, **kwargs: object) -> Any:
        """Add a layer by ``net.add_<kind>`` and name it ``name:kind``; if TensorRT rejects it, raise a NetworkError."""
        mark = self.log.position()
        layer = getattr(self.net, f"add_{kind}")(*args, **kwargs)
        if layer is None:
            raise NetworkError(f"TensorRT refused the layer {kind} ({self.log.error_text_since(mark)})")
        layer.name = self.make_unique_name(f"{name}:{kind}")
        return layer

    def record_weight(self, name: str, weight: torch.Tensor) -> None:
        """Record a weight under a name, and keep it alive until the build. If it is one of the program's constants, the
        engine's weight is named after the constant, and a refit sets it to the constant's new value."""
        if not isinstance(name, str) or not isinstance(weight, torch.Tensor):
            raise TypeError(f"record_weight takes a name and a torch.Tensor, got {name!r} and {kind_of(weight)}")
        self.recorded.setdefault(weight.data_ptr(), name)
        self._record_and_keep_alive(name, weight)

    def _record_and_keep_alive(self, name: str, weight: torch.Tensor) -> None:
        self.weight_refit_map[name] = weight
        self.cpu_weights_reference_holder.append(weight)

    def clear_cpu_weights_reference_holder(self) -> None:
        """Release the CPU tensors that hold the network's weights, after its engine is built."""
        self.cpu_weights_reference_holder.clear()

    def find_equal_constant(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the program's constant with the same elements as a tensor, else None: the tensor itself if it is one,
        or a constant with the same memory and order of elements (if the tensor is an array over this memory, or a view
        with an additional dim of size 1)."""
        if id(tensor) in self.constant_names:
            return tensor
        return self.find_constant_in_memory_of(tensor) if tensor.is_contiguous() else None

    def find_constant_in_memory_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the program's constant that a tensor views as a whole, for example transposed: a constant at the same
        address with as many elements; None if there is none."""
        place = tensor.data_ptr(), tensor.dtype, tensor.numel()
        found = (c for c in self.constants if (c.data_ptr(), c.dtype, c.numel()) == place and c.is_contiguous())
        return next(found, None) if tensor.numel() > 1 else None

    def trt_weights(self, value: torch.Tensor) -> Any:
        """Return ``trt.Weights`` of a constant, named by `constant_names` or content, without a copy if possible."""
        tensor = narrow_float64(value.detach().cpu().contiguous())
        constant = self.find_equal_constant(value)
        name = None if constant is None else self.constant_names[id(constant)]
        known = self.weights.get(tensor.data_ptr())
        if name is None or (known is not None and known.name != name and known.shape != tuple(tensor.shape)):
            name = content_name(tensor) if name is None else name
            tensor = self.literals.setdefault(name, tensor) if constant is None else tensor.clone()
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.weights.setdefault(tensor.data_ptr(), Weight(name, dtype, tuple(tensor.shape)))
        self._record_and_keep_alive(name, tensor)
        return as_weights(tensor)

    def trt_quantized_weights(self, value: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return ``trt.Weights`` of quantized constants in a TensorRT dtype; a byte contains two 4-bit values."""
        weights, tensor = self.trt_weights(value), self.cpu_weights_reference_holder[-1]
        known = self.weights[tensor.data_ptr()]
        self.weights[tensor.data_ptr()] = Weight(known.name, dtype, shape)
        is_plain = weights.size == math.prod(shape) and tensor.dtype != torch.uint8
        return weights if is_plain else low_bit_trt_weights(tensor, dtype)

    def empty_weights(self, dtype: torch.dtype) -> Any:
        """Return ``trt.Weights`` without elements, for an optional weight that is omitted."""
        return trt.Weights(to_trt(dtype))


def content_name(tensor: torch.Tensor) -> str:
    """Return a name derived from a constant's content, so that equal networks get equal descriptions."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.numel() <= 8:
        return f"{dtype}{list(tensor.shape)} = {tensor.tolist()}"
    raw = raw_bytes(tensor).numpy().tobytes()
    return f"{dtype}{list(tensor.shape)} = sha256:{hashlib.sha256(raw).hexdigest()[:16]}"
