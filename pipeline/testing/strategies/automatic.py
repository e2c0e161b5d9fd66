"""Create Hypothesis strategies from operator schemas, for operators whose arguments do not depend on one another.

Two kinds of operators qualify: elementwise operators (`Kind.POINTWISE`), whose tensors broadcast; and
operators with one tensor and at most one argument of dims: reductions, softmax, cumulative sums. Every other required
argument must accept any value of its type: a number, a flag, a dtype, or a mode with known choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import torch
from attrs import frozen
from hypothesis import strategies as st

from pipeline.aten.traits import Kind, op_kind
from pipeline.settings import CompilationSettings
from pipeline.testing.calls import Call, TensorSpec
from pipeline.testing.programs import CallError, build_call_program
from pipeline.testing.strategies import common
from pipeline.testing.strategies.common import DTYPES, Draw

CHOICES: Final = {
    "approximate": ("none", "tanh"),
    "rounding_mode": (None, "floor", "trunc"),
    "half_to_float": (False,),
    "correction": (None, 0, 1, 2),
    "diagonal": (0, 1, -1, 2, -2, 3, -3, 4, -4),
}
"""The valid values of arguments that accept only certain values, by argument name."""

OMITTED: Final = frozenset({"layout", "device", "pin_memory", "generator", "memory_format", "non_blocking", "copy"})
"""The names of arguments that converters ignore; generated calls leave them at their defaults."""

_DIVISORS: Final = frozenset({"div", "floor_divide", "remainder", "fmod", "true_divide", "divide"})


@frozen
class Argument:
    """An argument of an operator schema: its name, its type as text, and its default."""

    name: str
    type: str
    required: bool
    default: Any
    keyword: bool

    @property
    def kind(self) -> str:
        """Return the argument's type as text, without ``Optional``."""
        return self.type.removeprefix("Optional[").rstrip("]")

    @property
    def is_optional(self) -> bool:
        """Return whether None is a valid value of the argument."""
        return self.type.startswith("Optional")

    @property
    def is_tensor(self) -> bool:
        """Return whether the argument is a single tensor."""
        return self.kind == "Tensor"

    @property
    def required_dtype(self) -> torch.dtype | None:
        """Return the dtype that the argument must have, for operators that accept only one dtype; else None."""
        return torch.bool if self.name in ("condition", "mask") else None

    @property
    def names_dims(self) -> bool:
        """Return whether the argument's value is a dim, or a list of dims, of the tensor."""
        return self.name in ("dim", "dims", "axis") and self.kind in ("int", "List[int")

    @property
    def accepts_any_value(self) -> bool:
        """Return whether the operator accepts any value of the argument's type."""
        known = self.name in CHOICES or self.name == "dtype" or self.kind in ("number", "bool", "float")
        return known and self.name not in OMITTED


@cache
def schema_arguments(target: torch._ops.OpOverload) -> tuple[Argument, ...]:
    """Return the arguments of an operator's schema, in order."""
    return tuple(
        Argument(a.name, str(a.type), not a.has_default_value(), a.default_value, a.kwarg_only)
        for a in target._schema.arguments
    )


@cache
def strategy_from_schema(target: object) -> st.SearchStrategy[Call] | None:
    """Create an operator's strategy from its schema; None if the schema does not say which arguments are valid."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or not target._schema.returns:
        return None
    arguments = schema_arguments(target)
    tensors, dims = sum(a.is_tensor for a in arguments), sum(a.names_dims for a in arguments)
    if not tensors or any(a.required and not (a.is_tensor or a.names_dims or a.accepts_any_value) for a in arguments):
        return None
    if (torch.Tag.pointwise in target.tags or op_kind(target) is Kind.POINTWISE) and not dims:
        return common.make_strategy(target, _draw_elementwise_call)
    return common.make_strategy(target, _draw_call_with_dims) if tensors == 1 and dims <= 1 else None


def call_with_arguments(target: object, values: Mapping[str, object]) -> Call:
    """Return a call with these arguments, by name. A positional argument before the last given one gets its default."""
    positional = [a for a in schema_arguments(target) if not a.keyword]
    last = max((i for i, a in enumerate(positional) if a.name in values), default=-1)
    args = tuple(values.get(a.name, a.default) for a in positional[: last + 1])
    kwargs = {a.name: values[a.name] for a in schema_arguments(target) if a.keyword and a.name in values}
    return Call(target, args, kwargs)


def _draw_elementwise_call(draw: Draw, target: Any) -> Call:
    """Generate a call of an elementwise operator: its tensors broadcast, and have one dtype or several."""
    tensors = [a for a in schema_arguments(target) if a.is_tensor and (a.required or draw(st.booleans()))]
    shapes = draw(common.broadcast_shapes(len(tensors)))
    dtype = draw(st.sampled_from(accepted_dtypes(target)))
    mixed = draw(st.integers(0, 3)) == 0
    divides = target._schema.name.split("::")[-1] in _DIVISORS
    given: dict[str, TensorSpec | None] = {a.name: None for a in schema_arguments(target) if a.is_tensor}
    for i, (a, shape) in enumerate(zip(tensors, shapes, strict=True)):
        own = a.required_dtype or (draw(st.sampled_from(DTYPES)) if mixed and i else dtype)
        values = st.just("nonzero") if i and divides and not own.is_floating_point else common.value_kinds(own)
        constant = i > 0 and draw(st.integers(0, 3)) == 0  # a parameter
        given[a.name] = draw(common.tensors(shape, own, values, constant))
    call = call_with_arguments(target, given | _draw_plain_arguments(draw, target, dtype))
    return draw(common.name_sizes(call, least=draw(st.sampled_from([1, 0]))))


def _draw_call_with_dims(draw: Draw, target: Any) -> Call:
    """Generate a call of an operator with one tensor and, if it has such an argument, dims of that tensor."""
    shape, dtype = draw(common.shapes()), draw(st.sampled_from(accepted_dtypes(target)))
    tensor = next(a.name for a in schema_arguments(target) if a.is_tensor)
    given: dict[str, Any] = {}
    for a in schema_arguments(target):
        if a.names_dims and (a.required or draw(st.booleans())):
            chosen: st.SearchStrategy[Any] = (common.dim_lists if "List" in a.type else common.dims)(len(shape))
            given[a.name] = draw(chosen | st.none() if a.is_optional else chosen)
    given |= _draw_plain_arguments(draw, target, dtype)
    result = given.get("dtype")
    # No infinities that become integers, or NaN in eager's running mean.
    becomes_whole = result is not None and dtype.is_floating_point and not result.is_floating_point
    finite = becomes_whole or target._schema.name.endswith("_mean")
    kinds = [kind for kind in common.FLOAT_VALUES if not (finite and kind == "special")]
    spec = draw(common.tensors(shape, dtype, common.value_kinds(dtype, kinds)))
    return draw(common.name_sizes(call_with_arguments(target, {tensor: spec} | given)))


def _draw_plain_arguments(draw: Draw, target: object, dtype: torch.dtype) -> dict[str, Any]:
    """Generate arguments other than tensors and dims: numbers, flags, dtypes; those with defaults may be absent."""
    plain = [a for a in schema_arguments(target) if a.accepts_any_value and (a.required or draw(st.booleans()))]
    return {a.name: draw(_argument_values(a, dtype)) for a in plain}


def _argument_values(argument: Argument, dtype: torch.dtype) -> st.SearchStrategy[Any]:
    if argument.name in CHOICES:
        return st.sampled_from(CHOICES[argument.name])
    if argument.name == "dtype":
        return st.sampled_from((None, *common.FLOATS, *common.INTS))
    values: dict[str, st.SearchStrategy[Any]] = {"bool": st.booleans(), "float": st.sampled_from([0.5, 1.0, 2.0, 0.1])}
    drawn = values.get(argument.kind, common.numbers(dtype))
    return st.none() | drawn if argument.is_optional else drawn


@cache
def accepted_dtypes(target: object) -> tuple[torch.dtype, ...]:
    """Return the dtypes that an operator accepts for all its tensors; float dtypes twice, to be drawn more often."""
    found = [d for d in DTYPES if any(_is_accepted(_small_call(target, d, number)) for number in (1, 0.5, True))]
    return (*found, *(d for d in found if d.is_floating_point)) or (torch.float32,)


def _is_accepted(call: Call) -> bool:
    """Return whether both eager and tracing accept a call; a shift of bools, for example, is accepted only by eager."""
    try:
        return common.is_accepted_by_eager(call) and bool(build_call_program(call, CompilationSettings()))
    except CallError:
        return False


def _small_call(target: object, dtype: torch.dtype, number: object) -> Call:
    """Return a small call of an operator, with ``number`` as the value of every required number."""
    values: dict[str, Any] = {}
    for argument in schema_arguments(target):
        if argument.is_tensor:
            values[argument.name] = TensorSpec((2,), argument.required_dtype or dtype, "nonzero")
        elif argument.required:
            dim = [0] if "List" in argument.type else 0
            values[argument.name] = dim if argument.names_dims else CHOICES.get(argument.name, (number,))[0]
    return call_with_arguments(target, values)
