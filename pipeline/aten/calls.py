"""Map each node target to the function that executes it, and operator names in saved files to operators.

The functions that execute targets accept inputs of any memory layout, return no uninitialized memory, and refuse to
compute integers that would fill the memory.
"""

from __future__ import annotations

import builtins
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import ModuleType
from typing import Final

import torch

from pipeline.aten.types import Argument, Target, aten
from pipeline.errors import PipelineError
from pipeline.records.wording import kind_of


class TooLargeError(PipelineError, OverflowError):
    """An integer that a program computes from sizes would have more than `MOST_BITS` bits."""


MOST_BITS: Final = 4096
"""The maximum number of bits of an integer that is computed from sizes."""

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
    """Return the name of an operator or function, such as ``aten.permute.default`` or ``operator.getitem``."""
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
"""The Python functions that a graph may call, by qualified name: arithmetic on sizes, and `getitem`."""


def find_operator(name: str) -> torch._ops.OpOverload[..., Argument] | None:
    """Return the operator of a name like ``aten.permute.default``; None if no imported library defines it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    space, short, overload = (*name.split("."), "")[:3]
    found = getattr(torch.ops, space, None)
    packet = getattr(found, short, None) if isinstance(found, ModuleType) else None
    if not isinstance(packet, torch._ops.OpOverloadPacket) or overload not in packet.overloads():
        return None
    made: torch._ops.OpOverload[..., Argument] = getattr(packet, overload)
    return made


def safe_function(target: Target) -> Argument:
    """Return ``target``, or a wrapper that avoids huge integers, uninitialized memory or errors for some strides."""
    return RUNS.get(target, target)


def checked_power(base: Argument, exponent: Argument) -> Argument:
    """Return ``base ** exponent`` of numbers; raise `TooLargeError` for an integer of more than `MOST_BITS` bits."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent * base.bit_length() > MOST_BITS:
        _raise_too_large_error_if(abs(base) > 1)
    return base**exponent


def checked_shift(number: Argument, bits: Argument) -> Argument:
    """Return ``number << bits``; raise `TooLargeError` if the result would have more than `MOST_BITS` bits."""
    _raise_too_large_error_if(isinstance(bits, int) and bits > MOST_BITS)
    return number << bits


def _raise_too_large_error_if(too_large: bool) -> None:
    if too_large:
        raise TooLargeError(f"a number computed from tensor sizes needs more than {MOST_BITS} bits, the maximum")


def _require_numbers(function: Callable[..., Argument]) -> Callable[..., Argument]:
    """Wrap an arithmetic function so that it raises a TypeError for strings and lists, which it would concatenate."""

    @wraps(function)
    def call(*args: Argument) -> Argument:
        if strange := next((a for a in args if isinstance(a, (str, bytes, list, tuple, dict))), None):
            raise TypeError(f"the graph may call {function.__name__} with numbers only, got {kind_of(strange)}")
        result = function(*args)
        _raise_too_large_error_if(type(result) is int and result.bit_length() > MOST_BITS)
        return result

    return call


def _checked_round(number: Argument, digits: int = 0) -> Argument:
    """Return ``round(number, digits)``; ``digits`` is limited to 64 digits before or after the decimal point."""
    return round(number, max(-64, min(digits, 64))) if digits else round(number)


def _getitem(results: Argument, index: Argument) -> Argument:
    """Return ``results[index]`` of a tuple or list; raise a TypeError for other values."""
    if not isinstance(results, (tuple, list)):
        raise TypeError(f"the graph may call getitem on an operator's tuple of results only, got {kind_of(results)}")
    return results[index]


def _zero_filling_operator(target: Target) -> Target:
    """Return a version of ``target``, which returns uninitialized memory, that fills this memory with zeros."""
    return wraps(target)(lambda *args, **kwargs: target(*args, **kwargs).zero_())


def _resize_padded(x: torch.Tensor, size: Sequence[int], **_: object) -> torch.Tensor:
    """Return a copy of ``x`` resized to ``size``, as `torch.Tensor.resize_` does; new elements are zero."""
    count = math.prod(size)
    flat = x.reshape(-1)[:count]
    return torch.cat([flat, flat.new_zeros(count - flat.numel())]).reshape(tuple(size))


def _as_strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Return a strided view of a contiguous copy of ``x``, or of ``x`` itself if it is contiguous."""
    x = x.contiguous()
    return x.as_strided(size, stride, x.storage_offset() + (storage_offset or 0))


def _as_strided_scatter(
    x: torch.Tensor, src: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Return ``as_strided_scatter`` on a contiguous copy of ``x``, or on ``x`` itself if it is contiguous."""
    x = x.contiguous()
    return torch.as_strided_scatter(x, src, size, stride, x.storage_offset() + (storage_offset or 0))


_ANY_LAYOUT: Final[Mapping[Target, Target]] = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
    **dict.fromkeys((aten.as_strided.default, aten.as_strided_copy.default), _as_strided),
    aten.as_strided_scatter.default: _as_strided_scatter,
}
"""Replacements for operators that only accept certain memory layouts. Engines return contiguous tensors, whatever the
layout in the example. A program contains ``as_strided`` of contiguous tensors only (`pipeline.capture.as_strided`)."""

_EMPTY: Final = "empty empty_like new_empty empty_strided new_empty_strided empty_permuted"
_NEW: Final[Mapping[Argument, Argument]] = {
    op: _zero_filling_operator(op)
    for packet in (getattr(aten, name) for name in _EMPTY.split())
    for op in (getattr(packet, overload) for overload in packet.overloads() if "out" not in overload)
}
_ON_NUMBERS: Final[Mapping[Argument, Argument]] = {
    **{function: _require_numbers(function) for name, function in FUNCTIONS.items() if not name.startswith("torch.")},
    **dict.fromkeys((operator.pow, pow), _require_numbers(checked_power)),
    operator.lshift: _require_numbers(checked_shift),
    round: _require_numbers(_checked_round),
    operator.getitem: _getitem,
}
RUNS: Final[Mapping[Argument, Argument]] = {**_ANY_LAYOUT, **_ON_NUMBERS, **_NEW, aten.resize.default: _resize_padded}
"""For operators and functions that are unsafe to call directly: the function that is called instead."""
