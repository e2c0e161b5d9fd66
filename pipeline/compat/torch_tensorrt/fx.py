"""Declare and call converters of Torch-TensorRT's FX frontend: functions `(network, target, args, kwargs, name)`.
They read arguments by name. Names that this module does not have will not be added."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from pipeline.aten.support import CallingConvention, ConverterPriority, ConverterSupport, Declaration, Target, Validator
from pipeline.aten.types import Argument, Function, Operator
from pipeline.compat.torch_tensorrt.acc_ops import OPERATORS, named_arguments
from pipeline.compat.torch_tensorrt.blocks import add_layers_of, call
from pipeline.compat.torch_tensorrt.values import Conversion, as_context
from pipeline.converters.declare import ATTRIBUTE, attach, records_of, target_of
from pipeline.frozen import FrozenDict

Arguments: TypeAlias = Sequence[Argument]
Keywords: TypeAlias = Mapping[str, Argument]


def tensorrt_converter(
    key: Target,
    no_implicit_batch_dim: bool = True,
    no_explicit_batch_dim: bool = False,
    enabled: bool = True,
    *,
    capability_validator: Validator | None = None,
    priority: ConverterPriority = ConverterPriority.HIGH,
    supports_dynamic_shapes: bool = False,
) -> Callable[[Function], Function]:
    """Declare a converter of ``key`` (``acc_ops.linear``, or an ATen operator) as in Torch-TensorRT's FX frontend.

    The function is called `(network, target, args, kwargs, name)`. ``kwargs`` has all arguments by ``acc_ops`` names
    (``input``, ``negative_slope``), and ``args`` has the positional arguments of the model's call. Add the result to a
    registry with ``register(f)``, or with ``ConverterRegistry.from_legacy({key: f})``.

    ``no_implicit_batch_dim`` has no effect: networks always have explicit batches; ``no_explicit_batch_dim=True``
    raises a `ValueError`. With ``enabled=False`` nothing is declared. ``capability_validator`` is called ``(node) ->
    bool`` or ``(node, settings) -> bool | Rejection``; None accepts every call. The default priority is HIGH, since
    FX's registry keeps only the newest converter; with STANDARD, built-in converters are tried first.
    ``supports_dynamic_shapes``: whether the converter supports sizes that are known only at run time.
    """
    if no_explicit_batch_dim:
        raise ValueError(
            f"the converter of {key} is for implicit batch dims, which TensorRT no longer has: leave out "
            "no_explicit_batch_dim, and read the batch size from input.shape[0]"
        )
    target = target_of(key)

    def declare(function: Function) -> Function:
        named = with_named_arguments(function)
        support = ConverterSupport(named, capability_validator, supports_dynamic_shapes)
        return attach(named, ATTRIBUTE, (Declaration(target, support, priority, CallingConvention.LEGACY),) * enabled)

    return declare


def with_named_arguments(function: Function) -> Function:
    """Return a converter that calls ``function`` with all arguments, by their ``acc_ops`` names, in ``kwargs``."""
    if records_of(function, "__by_name__"):
        return function

    @functools.wraps(function)
    def convert(network: Conversion, target: Operator, args: Arguments, kwargs: Keywords, name: str) -> Argument:
        return function(network, target, args, named_arguments(target, args, kwargs), name)

    return attach(convert, "__by_name__", (True,))


def _built_in_converter(target: Operator) -> Function:
    """Return this package's converter of an operator as a function `(network, target, args, kwargs, name)`."""

    def convert(network: Conversion, target: Operator, args: Arguments, kwargs: Keywords, name: str) -> Argument:
        values = list(zip(target._schema.arguments, named_arguments(target, args, kwargs).values(), strict=True))
        plain = [value for argument, value in values if not argument.kwarg_only]
        keywords = {argument.name: value for argument, value in values if argument.kwarg_only}
        return add_layers_of(as_context(network), name, call(target, *plain, **keywords))

    convert.__name__ = target._schema.name.rpartition("::")[2]
    convert.__qualname__ = f"CONVERTERS.{convert.__name__}"
    return convert


CONVERTERS: Final[FrozenDict[Operator, Function]] = FrozenDict(
    {target: _built_in_converter(target) for target in OPERATORS.values()}
)
"""This package's converters of the FX operators, as functions with the LEGACY calling convention.
``ConverterRegistry.from_legacy(CONVERTERS)`` creates a registry of them. `tensorrt_converter` does not change this
mapping: add a declared converter with ``register(f)``."""
