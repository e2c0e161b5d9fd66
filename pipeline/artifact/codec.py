"""Convert records to JSON and back, by rules for the type annotations of their fields.

Fields that have their default value are omitted, so that old files stay readable when records get new fields. Reading
checks every type: the result matches the annotations of the record, or an error names the wrong field.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache, partial
from itertools import repeat
from typing import Any, Literal, Union

import attrs
import sympy
import torch

from pipeline.artifact import expressions, json_values
from pipeline.artifact.json_data import JsonData, MalformedError, MissingOperatorError
from pipeline.artifact.json_values import Convert, as_list, torch_attribute
from pipeline.aten.dtypes import short_name
from pipeline.errors import ArtifactError
from pipeline.frozen import FrozenDict

Json = typing.NewType("Json", object)
"""The type of fields that contain JSON, which is passed through unchanged, since other modules convert it."""


@attrs.frozen
class Rule:
    """The two functions that convert values of one type to JSON (``write``) and back (``read``)."""

    write: Convert
    read: Convert


def to_json(value: object, value_type: object) -> JsonData:
    """Convert a value to JSON, by the rule for ``value_type``."""
    return rule_for_type(value_type).write(value)


def from_json(data: JsonData, value_type: object) -> Any:
    """Convert JSON to a value of a type; a `MalformedError` names the field that is wrong."""
    return rule_for_type(value_type).read(data)


@cache
def rule_for_type(value_type: Any) -> Rule:
    """Return the functions (`Rule`) that convert values of a type, such as ``tuple[int, ...]``, to JSON and back."""
    if value_type in _PLAIN:
        return _PLAIN[value_type]
    origin, args = typing.get_origin(value_type), typing.get_args(value_type)
    if attrs.has(value_type):
        return _record_rule(value_type)
    if origin is Literal:
        return Rule(lambda value: value, lambda data: _checked_literal(data, args))
    if origin in (Union, types.UnionType):
        return _union_rule(args)
    if origin is tuple:
        return _tuple_rule(args)
    if origin is FrozenDict:
        return _mapping_rule(*args)
    if origin is frozenset:  # in JSON a sorted list
        inner = _tuple_rule((*args, Ellipsis))
        return Rule(lambda value: sorted(inner.write(value)), lambda data: frozenset(inner.read(data)))
    raise TypeError(f"a record has a field of type {value_type}, which pipeline.artifact.codec cannot convert to JSON")


def _record_rule(record_type: type) -> Rule:
    """Return the rule for an attrs class: in JSON an object with the fields that differ from their defaults."""
    rules: dict[str, Rule] = {}
    fields = {field.name: field for field in attrs.fields(record_type) if field.init}
    defaults = {name: field.default for name, field in fields.items()}
    defaults |= {name: each.factory() for name, each in defaults.items() if isinstance(each, attrs.Factory)}  # type: ignore[arg-type]

    def known() -> dict[str, Rule]:  # lazily, since records may be recursive
        if not rules:
            hints = typing.get_type_hints(record_type)
            rules.update({name: rule_for_type(hints[name]) for name in fields})
        return rules

    def write(value: object) -> Any:
        rows = ((name, each, getattr(value, name)) for name, each in known().items())
        return {name: each.write(v) for name, each, v in rows if not _is_default(defaults[name], v)}

    def read(data: JsonData) -> Any:
        if not isinstance(data, dict):
            raise MalformedError(f"expected a {record_type.__name__}, not {_excerpt(data)}")
        if not data.keys() <= fields.keys():
            unknown = next(name for name in data if name not in fields)
            raise MalformedError(f"a {record_type.__name__} has no field {unknown[:40]!r}")
        rules = known()
        found = {name: read_part(name, rules[name].read, value) for name, value in data.items()}
        try:
            return record_type(**found)
        except (TypeError, ValueError) as error:
            raise MalformedError(f"a {record_type.__name__} has invalid values: {error}") from None

    return Rule(write, read)


def _is_default(default: object, value: object) -> bool:
    """Return whether a field's value has the type and the value of the field's default, so that JSON omits it."""
    if value is default or type(value) is not type(default):
        return value is default
    return not value if not default and type(default) is not float else repr(value) == repr(default)


def read_part(part_name: object, read: Convert, data: JsonData) -> Any:
    """Return ``read(data)``, a part of a record. An error becomes a `MalformedError` whose location begins with
    ``part_name`` (``engines.0.name``), but a `MissingOperatorError` is raised unchanged."""
    try:
        return read(data)
    except MissingOperatorError:
        raise
    except MalformedError as error:
        inner = f"{part_name}.{error.location}" if error.location else str(part_name)
        raise MalformedError(error.why, inner, error.hint) from None
    except ArtifactError as error:
        raise MalformedError(error.message, str(part_name), error.hint) from None


def _read_elements(rules: Iterable[Rule], data: Iterable[JsonData]) -> tuple[Any, ...]:
    """Convert each element of a JSON list by its own rule; an error gets the element's index."""
    return tuple(read_part(i, each.read, part) for i, (each, part) in enumerate(zip(rules, data, strict=False)))


def _plain_type_rule(plain_type: type) -> Rule:
    """Return the rule for bool, int or str: in JSON the value itself; reading checks its type."""

    def read(data: JsonData) -> Any:
        if type(data) is not plain_type or (isinstance(data, int) and abs(data) >= expressions.LARGEST):
            raise MalformedError(f"expected a value of type {plain_type.__name__}, not {_excerpt(data)}")
        return data

    return Rule(plain_type, read)


def _checked_literal(data: JsonData, allowed: tuple[object, ...]) -> Any:
    if not isinstance(data, str) or data not in allowed:
        raise MalformedError(f"expected one of {', '.join(map(repr, allowed))}, not {_excerpt(data)}")
    return data


def _union_rule(types: tuple[Any, ...]) -> Rule:
    """Return the rule for a union: ``X | None``, plain types (``int | str``), or other types (see `json_values`)."""
    rest = [kind for kind in types if kind is not type(None)]
    if len(rest) == 1:
        inner = rule_for_type(rest[0])
        return Rule(
            lambda value: None if value is None else inner.write(value),
            lambda data: None if data is None else inner.read(data),
        )
    if any(kind not in (bool, int, float, str) for kind in rest):
        return _PLAIN[Any]
    rules = {kind: rule_for_type(kind) for kind in rest}

    def read(data: JsonData) -> Any:
        if type(data) not in rules:
            raise MalformedError(
                f"expected a value of type {' or '.join(k.__name__ for k in rules)}, not {_excerpt(data)}"
            )
        return rules[type(data)].read(data)

    return Rule(lambda value: value, read)


def _tuple_rule(element_types: tuple[object, ...]) -> Rule:
    if len(element_types) == 2 and element_types[1] is Ellipsis:
        inner = rule_for_type(element_types[0])
        return Rule(
            lambda value: [inner.write(v) for v in value],
            lambda data: _read_elements(repeat(inner), as_list(data)),
        )
    rules = [rule_for_type(kind) for kind in element_types]
    return Rule(
        lambda value: [each.write(v) for each, v in zip(rules, value, strict=True)],
        lambda data: _read_elements(rules, as_list(data, len(rules))),
    )


def _mapping_rule(key_type: Any, value_type: Any) -> Rule:
    """Return the rule for a mapping; in JSON it is a list of pairs, which preserves the order."""
    pairs = rule_for_type(tuple[tuple[key_type, value_type], ...])

    def read(data: JsonData) -> Any:
        found = pairs.read(data)
        mapping: FrozenDict[Any, Any] = FrozenDict(found)
        if len(mapping) != len(found):
            raise MalformedError(f"a mapping has the same key twice: {_excerpt(data)}")
        return mapping

    return Rule(lambda mapping: pairs.write(mapping.items()), read)


def _excerpt(data: JsonData) -> str:
    return f"{str(data)[:60]!r}"


_PLAIN: Mapping[object, Rule] = {
    **{kind: _plain_type_rule(kind) for kind in (bool, int, str)},
    float: Rule(json_values.write_float, json_values.read_float),
    Any: Rule(json_values.to_json, json_values.from_json),
    Json: Rule(lambda value: value, lambda data: data),
    **{kind: Rule(short_name, partial(torch_attribute, kind)) for kind in (torch.dtype, torch.layout)},
    int | sympy.Expr: Rule(
        expressions.to_json,
        lambda data: _PLAIN[int].read(data) if isinstance(data, int) else expressions.from_json(data),
    ),
}
