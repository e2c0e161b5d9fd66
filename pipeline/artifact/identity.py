"""Identify stages by their parts, for cache keys. A user's function has no digest, so neither has a pipeline that calls
one."""

from __future__ import annotations

import enum
import hashlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import torch

from pipeline.artifact.cached import Cached
from pipeline.artifact.engine_key import digests
from pipeline.artifact.json_data import JsonData
from pipeline.compose.pipelines import Pipeline
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import DecompositionTable
from pipeline.converters.registry import ConverterRegistry
from pipeline.errors import PipelineError
from pipeline.improvements import PASSES, Improvement
from pipeline.stages import Build, Verify


class NoIdentityError(PipelineError):
    """A part of a program or of its stages that has no digest."""


def identity(value: object) -> JsonData:
    """The identity of a stage or of a part of one: equal for two that do the same in this version of the package.

    Raises:
        NoIdentityError: it is, or calls, a function from outside the package.
    """
    for kind, rule in _RULES:
        if isinstance(value, kind):
            return rule(value)
    record: Any = type(value)
    if attrs.has(record) and _is_ours(record):
        rows = ((field.name, getattr(value, field.name)) for field in attrs.fields(record))
        return [_name(record), *([name, identity(each)] for name, each in rows)]
    if _is_ours(value):
        return _name(value)
    raise NoIdentityError(f"{_described(value)} is not the package's, and code has no digest")


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _is_ours(value: object) -> bool:
    """Whether a function or class is what this package has under its name."""
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    found = getattr(sys.modules.get(module), name, None)
    return module.startswith("pipeline.") and (value is found or value is getattr(found, "function", None))


def _described(value: object) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', named)}"


def _registry(registry: ConverterRegistry) -> JsonData:
    if registry is DYNAMO_CONVERTERS:
        return "ours"
    known = {declaration: i for i, declaration in enumerate(DYNAMO_CONVERTERS.declarations())}
    rows: list[JsonData] = []
    for declaration in registry.declarations():
        if declaration not in known:
            name = declaration.support.name
            raise NoIdentityError(f"the converter {name} of {declaration.key} is yours, and code has no digest")
        rows.append(known[declaration])
    return rows


def _decompositions(table: DecompositionTable) -> JsonData:
    theirs: Mapping[Any, object] = torch._decomp.decomposition_table
    for op, function in table.items():
        if function is not DECOMPOSITIONS.get(op) and function is not theirs.get(op):
            raise NoIdentityError(f"the decomposition of {op} is yours, and code has no digest")
    return [f"{op} {DECOMPOSITIONS.get(op) is function}" for op, function in table.items()]


def _improvement(improvement: Improvement) -> JsonData:
    if improvement not in PASSES:
        raise NoIdentityError(f"the pass {improvement.name} is yours, and code has no digest")
    return improvement.name


def _verify(_: Verify) -> JsonData:
    raise NoIdentityError("verify runs the model, and a cache cannot: pipeline.cached(store, compile) | verify")


def _tensor(tensor: torch.Tensor) -> JsonData:
    return [str(tensor.dtype), list(tensor.shape), digests({"": tensor})[""]]


_RULES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (ConverterRegistry, _registry),
    (DecompositionTable, _decompositions),
    (Improvement, _improvement),
    (Build, lambda value: "build"),  # plans are the same wherever they are built
    (Cached, lambda value: ["cached", identity(value.build)]),
    (Verify, _verify),
    (Pipeline, lambda value: ["pipeline", *map(identity, value.stages), identity(value.settings)]),
    (torch.Tensor, _tensor),
    (enum.Enum, lambda value: f"{_name(type(value))} {value.name}"),
    (type(None) | bool | int | float | str | bytes | Path, lambda value: f"{type(value).__name__} {value!r}"),
    (torch.dtype | torch.device | torch._ops.OpOverload | torch._ops.HigherOrderOperator, lambda v: f"torch {v}"),
    (tuple | list, lambda value: [type(value).__name__, *map(identity, value)]),
    (frozenset, lambda value: ["set", *sorted(map(identity, value), key=str)]),
    (Mapping, lambda value: ["mapping", *([identity(k), identity(v)] for k, v in value.items())]),
)


@cache
def package() -> str:
    """The SHA-256 of this package's own code, so that no change of the code is overlooked."""
    sha256, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        data = path.read_bytes()
        sha256.update(f"{path.relative_to(root).as_posix()} {len(data)}\n".encode() + data)
    return sha256.hexdigest()
