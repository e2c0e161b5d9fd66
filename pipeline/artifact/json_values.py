"""Convert plain values to JSON and back: arguments of operators, constants, attributes.

Values of JSON types stay unchanged; any other value is an object whose key is the kind of value: ``{"tuple": [1, 2]}``,
``{"dtype": "float32"}``, ``{"size": ["Mul", 2, …]}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeAlias

import sympy
import torch
from attrs import frozen
from torch import SymBool, SymFloat, SymInt
from torch._ops import HigherOrderOperator, OpOverload

from pipeline.artifact import expressions
from pipeline.artifact.json_data import JsonData, MalformedError
from pipeline.artifact.op_names import find_allowed_operator, operator_name
from pipeline.aten.dtypes import short_name
from pipeline.errors import ArtifactError
from pipeline.inputs import Constant
from pipeline.recipes import Ref

Convert: TypeAlias = Callable[[Any], Any]


@frozen
class NodeName:
    """The name of a graph node among another node's arguments, until the graph is built and has the node itself."""

    name: str


def write_float(value: float) -> JsonData:
    """Convert a float to JSON; infinities and NaN, which JSON lacks, become objects."""
    value = float(value)
    return value if math.isfinite(value) else {"float": str(value)}


def read_float(data: JsonData) -> float:
    """Convert JSON to a float, including infinities and NaN."""
    if isinstance(data, float):
        return data
    if isinstance(data, dict) and data.get("float") in ("inf", "-inf", "nan"):
        return float(data["float"])
    raise MalformedError(f"expected a float, not {str(data)[:60]!r}")


def torch_attribute(attribute_type: type, name: object) -> Any:
    """Return torch's attribute of this name, if it has this type: ``torch.float32`` for ``float32``."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, attribute_type):
        raise MalformedError(f"torch has no {attribute_type.__name__} named {str(name)[:40]!r}")
    return found


def _read_device(data: JsonData) -> torch.device:
    try:
        return torch.device(data if isinstance(data, str) else "")
    except RuntimeError:
        raise MalformedError(f"{str(data)[:40]!r} is not a device of torch, such as cuda:0") from None


def _read_list(data: JsonData, count: int | None = None) -> list[JsonData]:
    return [from_json(part) for part in as_list(data, count)]


def _read_shape(data: JsonData) -> torch.Size:
    try:
        return torch.Size(_read_list(data))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise MalformedError(f"expected a list of sizes, not {str(data)[:60]!r}") from None


def _read_constant(data: JsonData) -> Constant:
    """Convert JSON such as ``["float32", [1.0, 2.0]]`` to a constant tensor."""
    dtype, numbers = as_list(data, 2)
    try:
        return Constant(torch.tensor(from_json(numbers), dtype=torch_attribute(torch.dtype, dtype)))
    except (TypeError, ValueError, RuntimeError):
        raise MalformedError(f"expected the numbers of a constant tensor, not {str(numbers)[:60]!r}") from None


def as_list(data: JsonData, count: int | None = None) -> list[JsonData]:
    """Return JSON data, a list; raise a `MalformedError` for other data, or if it has not ``count`` elements."""
    if not isinstance(data, list) or count not in (None, len(data)):
        size = "" if count is None else f" of {count} elements"
        raise MalformedError(f"expected a list{size}, not {str(data)[:60]!r}")
    return data


def _read_dict(data: JsonData) -> dict[Any, Any]:
    """Convert a JSON list of pairs, ``[[key, value], …]``, to a dict."""
    rows = [as_list(row, 2) for row in as_list(data)]
    try:
        return {from_json(key): from_json(value) for key, value in rows}
    except TypeError:
        raise MalformedError("a dict has a key that is not hashable") from None


def _as_str(data: JsonData) -> str:
    if not isinstance(data, str):
        raise MalformedError(f"expected a name, not {str(data)[:60]!r}")
    return data


def _all_to_json(elements: Any) -> list[JsonData]:
    return [to_json(part) for part in elements]


_JSON_KINDS: tuple[tuple[Any, str, Convert, Convert], ...] = (
    (torch.Size, "shape", _all_to_json, _read_shape),
    (tuple, "tuple", _all_to_json, lambda data: tuple(_read_list(data))),
    (dict, "dict", lambda value: [[to_json(k), to_json(v)] for k, v in value.items()], _read_dict),
    (torch.dtype, "dtype", short_name, partial(torch_attribute, torch.dtype)),
    (torch.device, "device", str, _read_device),
    (torch.layout, "layout", short_name, partial(torch_attribute, torch.layout)),
    (torch.memory_format, "memory_format", short_name, partial(torch_attribute, torch.memory_format)),
    (Constant, "constant", lambda v: [short_name(v.value.dtype), to_json(v.value.tolist())], _read_constant),
    (
        complex,
        "complex",
        lambda v: _all_to_json((v.real, v.imag)),
        lambda v: complex(*map(read_float, as_list(v, 2))),
    ),
    (slice, "slice", lambda v: _all_to_json((v.start, v.stop, v.step)), lambda data: slice(*_read_list(data, 3))),
    (type(Ellipsis), "ellipsis", lambda value: None, lambda data: ...),
    (Ref, "ref", attrgetter("name"), lambda data: Ref(_as_str(data))),
    (torch.fx.Node, "node", attrgetter("name"), lambda data: NodeName(_as_str(data))),
    (sympy.Basic, "size", expressions.to_json, expressions.from_json),
    (SymInt | SymFloat | SymBool, "size", lambda value: expressions.to_json(value.node.expr), expressions.from_json),
    (OpOverload | HigherOrderOperator, "operator", operator_name, lambda data: find_allowed_operator(_as_str(data))),
)
"""The conversions to JSON, in order of priority: a value's type, the key in JSON, the writer and the reader."""
_READ: Mapping[str, Convert] = {
    **{name: read for _, name, _, read in _JSON_KINDS},
    "float": lambda data: read_float({"float": data}),
}


def to_json(value: object) -> JsonData:
    """Convert a value to JSON; raise an `ArtifactError` if its type cannot be saved."""
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, float):
        return write_float(value)
    if isinstance(value, list):
        return _all_to_json(value)
    name, write = _key_and_writer(type(value))  # type: ignore[arg-type]
    return {name: write(value)}


@cache
def _key_and_writer(kind: type) -> tuple[str, Callable[[object], JsonData]]:
    """Return the JSON key for values of a type, such as ``dtype``, and the function that converts a value."""
    for kinds, name, write, _ in _JSON_KINDS:
        if issubclass(kind, kinds):
            return name, write
    raise ArtifactError(f"a saved program cannot have a value of type {kind.__module__}.{kind.__qualname__}")


def from_json(data: JsonData) -> Any:
    """Convert JSON to a value; raise a `MalformedError` if it is malformed."""
    if isinstance(data, list):
        return _read_list(data)
    if not isinstance(data, dict):
        return data
    if len(data) != 1 or (name := next(iter(data))) not in _READ:
        raise MalformedError(f"{str(data)[:60]!r} is not a value that a saved program can have")
    return _READ[name](data[name])
