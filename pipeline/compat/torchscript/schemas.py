"""Declare converters by an operator's schema in TorchScript syntax, and create the ``Weights`` for their layers.
``Weights`` are TensorRT weights with the metadata that such converters read."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch._ops import OpOverloadPacket

from pipeline.aten.arguments import bind
from pipeline.aten.types import Argument, Function, Node, Operator
from pipeline.converters.registry import ConverterPriority, Validator, dynamo_tensorrt_converter
from pipeline.network.context import ConversionContext
from pipeline.records.wording import kind_of
from pipeline.trt import as_weights, trt

Convert: TypeAlias = Callable[[ConversionContext, Node, tuple[Argument, ...]], Argument]

_BOUND: Final = "__takes_arguments_by_schema__"


def converter(
    schema: str,
    *,
    enabled: bool = True,
    capability_validator: Validator | None = None,
    priority: ConverterPriority = ConverterPriority.HIGH,
    supports_dynamic_shapes: bool = True,
    requires_output_allocator: bool = False,
) -> Callable[[Convert], Function]:
    """Declare a converter by the schema of its operator; add the result to a registry with ``registry.register``.

    The function is called ``(ctx, node, args)``. ``args`` is a tuple in the schema's order with defaults filled in:
    ``ITensor``s for outputs of layers, CPU tensors for constants, else Python values. It returns the result's
    ``ITensor``, or a tuple of them. Names that the function sets on layers and tensors are kept, except that outputs of
    the engine get the model's output names. To declare several schemas, apply the decorator once for each.

    By default the function takes precedence over the built-in converter, and is called for nodes with dynamic sizes
    too; ``priority`` and ``supports_dynamic_shapes`` change that. The schema of an in-place operator declares a
    converter of the operator that returns a new tensor, because programs are functionalized before conversion.

    Raises:
        ValueError: no operator has this schema; the message has the nearest ones.
    """
    target = find_operator(schema)
    declare = dynamo_tensorrt_converter(
        target,
        enabled=enabled,
        capability_validator=capability_validator,
        priority=priority,
        supports_dynamic_shapes=supports_dynamic_shapes,
        requires_output_allocator=requires_output_allocator,
    )
    return lambda function: declare(_bind_by_schema(function))


def _bind_by_schema(function: Convert) -> Function:
    """Return a converter `(ctx, target, args, kwargs, name)` that calls `function(ctx, node, args)`."""
    if getattr(function, _BOUND, False):
        return function

    @functools.wraps(function)
    def convert(ctx: ConversionContext, target: Operator, args: Argument, kwargs: Argument, name: str) -> Argument:
        assert ctx.node is not None
        return function(ctx, ctx.node, tuple(bind(target, args, kwargs)))

    setattr(convert, _BOUND, True)
    return convert


def find_operator(schema: str) -> Operator:
    """Return the operator with this schema; for an in-place operator, return its functional variant."""
    match = re.match(r"\s*(\w+)::(\w+)", schema) if isinstance(schema, str) else None
    if match is None:
        example = "aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"
        raise ValueError(f"{schema!r} is not an operator schema; expected a schema such as {example!r}")
    overloads = _overloads(getattr(getattr(torch.ops, match[1]), match[2], None))
    for overload in overloads:
        if _normalize_schema(str(overload._schema)) == _normalize_schema(schema):
            return _functional_variant(overload) if overload._schema.is_mutable else overload
    if not overloads:
        names = difflib.get_close_matches(match[2], dir(torch.ops.aten), 3)
        overloads = [each for name in names for each in _overloads(getattr(torch.ops.aten, name))]
    known = [str(overload._schema) for overload in overloads]
    near = difflib.get_close_matches(schema, known, 3, 0) or known
    rows = "".join(f"\n  {row}" for row in near)
    raise ValueError(f"no operator has the schema {schema!r}" + (f"; similar schemas:{rows}" if rows else ""))


def _overloads(packet: object) -> list[Operator]:
    return [getattr(packet, name) for name in packet.overloads()] if isinstance(packet, OpOverloadPacket) else []


def _normalize_schema(schema: str) -> str:
    """Return a schema in TorchScript syntax without symbolic sizes and aliases, and with normalized numbers."""
    try:
        text = str(torch._C.parse_schema(schema))
    except RuntimeError:
        return schema
    return re.sub(r"\([a-z*!> |-]+\)(?= |\[|,|\)|$)", "", text.replace("SymInt", "int")).replace(" ", "")


def _functional_variant(overload: Operator) -> Operator:
    """Return the functional variant of an in-place operator (``aten::relu`` for ``aten::relu_``), if there is one."""
    schema = overload._schema
    namespace, _, name = schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    found = getattr(packet, overload._overloadname, None) if name.endswith("_") else None
    if found is None or [a.name for a in found._schema.arguments] != [a.name for a in schema.arguments]:
        raise ValueError(f"{schema.name} writes to its arguments: pass the schema of one that returns a new tensor")
    return found  # type: ignore[no-any-return]


@frozen(eq=False)
class Weights:
    """Weights of a TensorRT layer, created from a tensor, array or number: ``Weights(ctx, value)``.

    The weights share the value's memory if it is contiguous and on the CPU. In that case, weights of a parameter, or of
    a parameter's ``.numpy()``, can be refitted. A Python int becomes int64, a float becomes float32.

    Attributes:
        data: the ``trt.Weights``.
        shape: the sizes; a number has none.
        kernel_shape: a convolution's kernel sizes: ``shape`` without the first two, or ``(1,)`` if there are no more.
        num_output_maps: the number of output channels (``shape[0]``; 1 for a scalar).
        num_input_maps: the number of input channels (``shape[1]``; ``shape[0]`` below rank 2).

    Raises:
        TypeError: the value is not a tensor, array or number, or has a dtype that TensorRT does not have.
    """

    ctx: ConversionContext = field(repr=False)
    value: torch.Tensor | NDArray[np.generic] | float = field(repr=False)
    tensor: torch.Tensor = field(init=False, repr=False)
    data: trt.Weights = field(init=False)

    @tensor.default
    def _as_tensor(self) -> torch.Tensor:
        value = self.value
        if isinstance(value, torch.Tensor):
            return value.detach().cpu().contiguous()
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, np.generic):
            return torch.tensor(value)
        if isinstance(value, bool | int | float):
            return torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else None)
        raise TypeError(f"Weights takes a tensor, a numpy array or a number, not {kind_of(value)}")

    @data.default
    def _create_trt_weights(self) -> trt.Weights:
        self.ctx.cpu_weights_reference_holder.append(self.tensor)
        return as_weights(self.tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """Return the kernel sizes of a convolution's weights [out, in, *kernel]; (1,) if there are none."""
        return self.shape[2:] or (1,)

    @property
    def num_output_maps(self) -> int:
        """Return the number of output channels of a convolution's or linear layer's weights; 1 for a number."""
        return (*self.shape, 1)[0]

    @property
    def num_input_maps(self) -> int:
        """Return the number of input channels: the second size of the weights or, below rank 2, the first."""
        return self.shape[1] if len(self.shape) > 1 else self.num_output_maps
