"""Convert the settings that differ from the default to JSON. Predicates, which are code, are saved only by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.artifact import json_values, op_names
from pipeline.artifact.json_data import JsonData, MalformedError
from pipeline.errors import ArtifactError
from pipeline.frozen import FrozenDict
from pipeline.records.executed_ops import entry_name
from pipeline.settings import CompilationSettings

EXECUTED = "torch_executed_ops"
PLACES = ("engine_cache_dir", "measurements", "runtime_cache")
"""Settings that may name a folder. They are not saved, since a file must not choose where its reader writes."""


class SavedPredicate:
    """A placeholder in a loaded program's ``torch_executed_ops`` for a predicate, or for an operator that this process
    lacks. It has only the name, which `entry_name` returns."""

    def __init__(self, name: str) -> None:
        self.__module__, _, self.__qualname__ = name.rpartition(".")

    def __call__(self, path: str) -> bool:
        why = f"the predicate {entry_name(self)} of torch_executed_ops cannot be called: a file has only its name"
        raise ArtifactError(why, "pass torch_executed_ops again, with the function, to compile again")


def to_json(settings: CompilationSettings) -> FrozenDict[str, JsonData]:
    """Convert the settings that differ from the default to JSON, by name."""
    default = CompilationSettings()
    given = ((name, getattr(settings, name)) for name in settings.names())
    changed = {n: v for n, v in given if v != getattr(default, n) and not (n in PLACES and isinstance(v, str))}
    executed = sorted(map(_executed_op_to_json, changed.pop(EXECUTED, ())), key=str)
    rows = {name: json_values.to_json(value) for name, value in changed.items()}
    return FrozenDict(sorted((rows | {EXECUTED: executed} if executed else rows).items()))


def _executed_op_to_json(entry: object) -> object:
    """Convert an entry of ``torch_executed_ops`` to JSON: a str, or ``{"operator": …}`` or ``{"predicate": …}``."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, SavedPredicate):
        return {"predicate": entry_name(entry)}
    try:
        return {"operator": op_names.operator_name(entry)}
    except ArtifactError:
        return {"predicate": entry_name(entry)}


def from_json(rows: Mapping[str, object]) -> CompilationSettings:
    """Convert JSON to settings; raise a `MalformedError` if it is malformed."""
    fields = {name: json_values.from_json(row) for name, row in rows.items() if name != EXECUTED}
    fields = {name: value for name, value in fields.items() if not (name in PLACES and isinstance(value, str))}
    executed = rows.get(EXECUTED, [])
    if not isinstance(executed, list):
        raise MalformedError(f"torch_executed_ops is {str(executed)[:60]!r}: expected a list of operators")
    try:
        return CompilationSettings(**fields, torch_executed_ops=map(_executed_op_from_json, executed))
    except (TypeError, ValueError) as error:
        raise MalformedError(str(error)) from None


def _executed_op_from_json(data: JsonData) -> Any:
    """Convert JSON to an entry of ``torch_executed_ops``; a predicate or missing operator to a `SavedPredicate`."""
    if isinstance(data, str):
        return data
    kind, name = next(iter(data.items())) if isinstance(data, dict) and len(data) == 1 else ("", "")
    if kind not in ("operator", "predicate") or not isinstance(name, str):
        raise MalformedError(f"torch_executed_ops has {str(data)[:60]!r}: expected an operator")
    found = op_names.find_callable(name) if kind == "operator" else None
    return found or SavedPredicate(name if kind == "predicate" else f"torch.ops.{name}")
