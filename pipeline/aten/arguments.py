"""Bind the arguments of an operator call, in the order of the operator's schema and with its defaults."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from pipeline.aten.types import Argument, Target


@lru_cache(maxsize=4096)
def _parameters_and_defaults(target: Target) -> tuple[tuple[str, bool, Any], ...]:
    """Return (name, whether it has a default, default) for each parameter of an operator or a Python function."""
    if not hasattr(target, "_schema"):
        parameters = inspect.signature(target).parameters.values()
        return tuple((p.name, p.default is not p.empty, p.default) for p in parameters)
    return tuple((a.name, a.has_default_value(), a.default_value) for a in target._schema.arguments)


@lru_cache(maxsize=4096)
def argument_names(target: Target) -> tuple[str, ...]:
    """Return an operator's argument names as converters use them: the schema's names, with ``input`` for ``self``."""
    return tuple("input" if name == "self" else name for name, _, _ in _parameters_and_defaults(target))


def bind(target: Target, args: Sequence[object], kwargs: Mapping[str, object]) -> list[Argument]:
    """Return all arguments of a call in the schema's order, with defaults for arguments that the call omits."""
    values: list[Argument] = []
    for i, (name, has_default, default) in enumerate(_parameters_and_defaults(target)):
        if i < len(args):
            values.append(args[i])
        elif name in kwargs:
            values.append(kwargs[name])
        elif has_default:
            values.append(default)
        else:
            raise TypeError(f"the call of {target} lacks its required argument {name}")
    return values


_NEEDED: Final = object()


def argument(node: torch.fx.Node, name: str, default: object = _NEEDED) -> Any:
    """Return a node's argument by its name in the schema. If the call omits it, this is the schema's default; if the
    operator has no such argument, it is ``default``."""
    names = [n for n, _, _ in _parameters_and_defaults(node.target)]
    if default is not _NEEDED and name not in names:
        return default
    return bind(node.target, node.args, node.kwargs)[names.index(name)]
