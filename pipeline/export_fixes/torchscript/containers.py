"""Evaluators of lists, dicts and strings. They use Python's own objects, so a list with several names is one list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pipeline.export_fixes.torchscript.numbers import plain
from pipeline.export_fixes.torchscript.registry import Call, Evaluator
from pipeline.export_fixes.torchscript.types import Value


def _get(call: Call, values: Value, index: Value) -> Value:
    if isinstance(values, dict) and index not in values:
        raise call.error(f"the dict has no key {index!r}")
    if not isinstance(values, dict) and not -len(values) <= index < len(values):
        raise call.error(f"index {index} is outside a list of {len(values)}")
    return values[index]


def _set(values: Value, index: Value, value: Value) -> None:
    values[index] = value


def _delete(values: Value, index: Value) -> None:
    del values[index]


def _append(values: list[Value], value: Value) -> list[Value]:
    values.append(value)
    return values


def _listed(values: Value) -> list[Value]:
    return list(values)


def _sort(values: list[Value], *options: Value) -> None:
    values.sort(reverse=bool(options and options[-1]))


def _method(name: str) -> Callable[..., Value]:
    """Return a method of the first value, of this name."""
    return lambda owner, *values: getattr(owner, name)(*values)


_LISTS: Final[Mapping[str, Callable[..., Value]]] = {
    "aten::slice": lambda values, start, end, step=1: values[start:end:step],
    "aten::select": lambda values, index: values[index],
    "aten::list": _listed,
    "aten::sort": _sort,
    "aten::sorted": lambda values, *options: sorted(values, reverse=bool(options and options[-1])),
    "aten::copy": _method("copy"),
    "aten::clear": _method("clear"),
    "aten::index": _method("index"),
    "aten::count": _method("count"),
    "aten::remove": _method("remove"),
    "aten::dict": dict,
    "aten::split": _method("split"),
    "aten::len": len,
}
"""Kinds that tensors share with lists, dicts and strings, as functions for overloads without a tensor."""

_STRINGS: Final = (
    *("capitalize", "center", "endswith", "expandtabs", "find", "isalnum", "isalpha", "isdecimal", "isdigit"),
    *("isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower"),
    *("lstrip", "partition", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "splitlines"),
    *("startswith", "strip", "swapcase", "title", "upper", "zfill"),
)
"""Kinds that are Python's string method of the same name."""


def _of(function: Callable[..., Value]) -> Evaluator:
    return lambda call, *values: function(*values)


CONTAINERS: Final[Mapping[str, Evaluator]] = {
    **plain(_LISTS),
    **plain({f"aten::{name}": _method(name) for name in _STRINGS}),
    **{f"aten::{name}": _of(_method(name)) for name in ("extend", "insert", "pop", "reverse")},
    **{f"aten::{name}": _of(_method(name)) for name in ("get", "setdefault", "update", "popitem")},
    "aten::keys": lambda call, values: list(values.keys()),
    "aten::values": lambda call, values: list(values.values()),
    "aten::items": lambda call, values: list(values.items()),
    "aten::append": _of(_append),
    "aten::__getitem__": _get,
    "prim::StringIndex": _get,
    "aten::_set_item": _of(_set),
    "aten::Delete": _of(_delete),
    "aten::__contains__": lambda call, values, value: value in values,
    "aten::Size": lambda call, sizes: list(sizes),
    "aten::format": lambda call, text, *values: text.format(*values),
    "aten::percentFormat": lambda call, text, *values: text % values,
    "aten::str": lambda call, value: str(value),
    "aten::ord": lambda call, value: ord(value),
    "aten::chr": lambda call, value: chr(value),
}
"""Evaluators of lists, dicts and strings."""
