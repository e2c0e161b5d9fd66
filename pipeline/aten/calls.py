"""What runs for a node of a graph, and what a name in a file or a recipe stands for.

A node says what is computed; what runs for it here accepts inputs of any memory layout, returns no memory that nobody
wrote to, and computes no number that would fill memory.
"""

from __future__ import annotations

import builtins
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Final

import torch

from pipeline.aten.layouts import ANY_LAYOUT
from pipeline.aten.types import Argument, Target
from pipeline.errors import PipelineError

aten = torch.ops.aten


class TooLargeError(PipelineError, OverflowError):
    """A number that a program computes from sizes would fill memory."""


MOST_BITS: Final = 4096
"""A number that is computed from sizes has no more bits."""

_NAME = re.compile(r"\w+\.\w+(\.\w+)?", re.ASCII)
_FUNCTIONS: Final = {
    operator: (
        *("add", "sub", "mul", "floordiv", "mod", "neg", "pos", "pow", "truediv", "abs", "invert", "getitem"),
        *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_", "lshift", "rshift"),
    ),
    math: ("ceil", "floor", "trunc", "sqrt", "pow"),
    builtins: ("abs", "float", "int", "bool", "max", "min", "pow", "round"),
    torch: (
        *("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sum", "sym_fresh_size"),
        *("_sym_sqrt", "_sym_log2", "_sym_exp", "_sym_sin", "_sym_cos", "_sym_tan", "_sym_tanh"),
    ),
}


def qualified_name(target: object) -> str:
    """``aten.permute.default`` for an operator overload; ``operator.getitem``, ``torch.sym_min`` for functions."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target)
    module = getattr(target, "__module__", "")
    module = "operator" if module == "_operator" else module
    return f"{module}.{getattr(target, '__name__', target)}"


FUNCTIONS: Final[Mapping[str, Callable[..., Argument]]] = {
    qualified_name(function): function
    for module, names in _FUNCTIONS.items()
    for name in names
    if (function := getattr(module, name, None)) is not None
}
"""The Python functions that a graph may call, by name: arithmetic on sizes, and `getitem`."""


def operator_named(name: str) -> torch._ops.OpOverload[..., Argument] | None:
    """The operator with a name such as ``aten.permute.default``; None if this process has none. Nothing is imported."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    space, short, overload = (*name.split("."), "")[:3]
    found = getattr(torch.ops, space, None)
    packet = getattr(found, short, None) if isinstance(found, torch._ops._OpNamespace) else None
    if not isinstance(packet, torch._ops.OpOverloadPacket) or overload not in packet.overloads():
        return None
    made: torch._ops.OpOverload[..., Argument] = getattr(packet, overload)
    return made


def callee(target: Target) -> Argument:
    """The function that runs for a node that calls ``target``."""
    return RUNS.get(target, target)


def power(base: Argument, exponent: Argument) -> Argument:
    """``base ** exponent`` of numbers. `TooLargeError` if a whole number would have more than `MOST_BITS` bits."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent * base.bit_length() > MOST_BITS:
        _check(abs(base) > 1)
    return base**exponent


def shifted(number: Argument, places: Argument) -> Argument:
    """``number << places`` of numbers. `TooLargeError` if it would have more than `MOST_BITS` bits."""
    _check(isinstance(places, int) and places > MOST_BITS)
    return number << places


def _check(too_large: bool) -> None:
    if too_large:
        raise TooLargeError(f"a number computed from sizes has more than {MOST_BITS} bits")


def _of_numbers(function: Callable[..., Argument]) -> Callable[..., Argument]:
    """The function for numbers alone: not for texts and lists, which it would join or repeat."""

    @wraps(function)
    def call(*args: Argument) -> Argument:
        if strange := next((a for a in args if isinstance(a, (str, bytes, list, tuple, dict))), None):
            raise TypeError(f"{function.__name__} takes numbers here, not a {type(strange).__name__}")
        result = function(*args)
        _check(type(result) is int and result.bit_length() > MOST_BITS)
        return result

    return call


def _rounded(number: Argument, digits: int = 0) -> Argument:
    """``round(number)``, to at most 64 digits before or after the point."""
    return round(number, max(-64, min(digits, 64))) if digits else round(number)


def _item(values: Argument, index: Argument) -> Argument:
    """``values[index]`` of the results of an operator."""
    if not isinstance(values, (tuple, list)):
        raise TypeError(f"getitem takes the results of an operator here, not a {type(values).__name__}")
    return values[index]


def _zeroed(target: Target) -> Target:
    """The operator, whose new memory holds zeros."""
    return wraps(target)(lambda *args, **kwargs: target(*args, **kwargs).zero_())


def _resized(x: torch.Tensor, size: Sequence[int], **_: object) -> torch.Tensor:
    """``x.resize_(size)`` in memory of its own, filled up with zeros."""
    count = math.prod(size)
    flat = x.reshape(-1)[:count]
    return torch.cat([flat, flat.new_zeros(count - flat.numel())]).reshape(tuple(size))


_EMPTY: Final = "empty empty_like new_empty empty_strided new_empty_strided empty_permuted"
_NEW: Final[Mapping[Argument, Argument]] = {
    op: _zeroed(op)
    for packet in (getattr(aten, name) for name in _EMPTY.split())
    for op in (getattr(packet, overload) for overload in packet.overloads() if "out" not in overload)
}
_ON_NUMBERS: Final[Mapping[Argument, Argument]] = {
    **{function: _of_numbers(function) for name, function in FUNCTIONS.items() if not name.startswith("torch.")},
    **dict.fromkeys((operator.pow, pow), _of_numbers(power)),
    operator.lshift: _of_numbers(shifted),
    round: _of_numbers(_rounded),
    operator.getitem: _item,
}
RUNS: Final[Mapping[Argument, Argument]] = {
    **ANY_LAYOUT,
    **_ON_NUMBERS,
    **_NEW,
    aten.resize.default: _resized,
}
"""What runs in the place of operators and functions."""
