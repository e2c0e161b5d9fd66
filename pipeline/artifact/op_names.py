"""Look operators up by name: ``aten.add.Tensor``, ``higher_order.cond``, ``operator.add``, ``torch.sym_max``.

A program from a file calls operators that only compute (`pipeline.aten.effects`), those of other libraries that the
caller of `load` allows, four that run graphs of the file itself, and arithmetic on sizes. Looking a name up imports
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import torch
from attrs import frozen

from pipeline.artifact.malformed import MalformedError, MissingOperatorError
from pipeline.aten.calls import FUNCTIONS, operator_named, qualified_name
from pipeline.aten.effects import SPACES, refusal
from pipeline.errors import ArtifactError

ANY: Final = None
"""In the place of allowed libraries: all that this process has."""

GRAPHS: Final[Mapping[str, int]] = {"cond": 2, "while_loop": 2, "map_impl": 1, "scan": 1}
"""The operators that run graphs, and how many of their arguments are graphs; ``cond`` has its condition before them."""


@frozen
class Named:
    """An operator of an engine, which nobody calls any more: only its name is kept."""

    name: str

    def __str__(self) -> str:
        return self.name

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Raise an error: the operator is part of an engine."""
        raise ArtifactError(f"{self.name} runs in an engine of this program; only its name was kept")

    @property
    def __name__(self) -> str:
        return self.name


def name_of(target: object) -> str:
    """The name of an operator or function.

    Raises:
        ArtifactError: it cannot be looked up again.
    """
    name = name_of_any(target)
    if isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator, Named)) or name in FUNCTIONS:
        return name
    raise ArtifactError(f"{name} cannot be kept: it is no operator of torch", "make it one: torch.library.custom_op")


def name_of_any(target: object) -> str:
    """A readable name for anything that a node calls."""
    if isinstance(target, Named):
        return target.name
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return qualified_name(target)


def known(name: str) -> Any:
    """The operator or function of a name, whatever it does; None where this process has none."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    space, _, short = name.partition(".")
    return torch._ops._higher_order_ops.get(short) if space == "higher_order" else operator_named(name)


def target_of(name: str, libraries: Collection[str] | None = (), library: str = "") -> Any:
    """The operator or function of a name that a file calls.

    Args:
        name: its name.
        libraries: the namespaces of other libraries that are allowed; `ANY` for all.
        library: the module that defines the operator, for the error.

    Raises:
        MissingOperatorError: this process has no such operator, or its library is not allowed; the hint says how to go
            on.
        MalformedError: no program may call it.
    """
    target, space = known(name), name.partition(".")[0]
    if target is None:
        raise MissingOperatorError(
            f"the operator {name[:80]} is not there",
            f"import {library or space[:60]}, which defines it, before loading" if space not in SPACES else "",
        )
    if why := refused(target, libraries):
        if space in SPACES or not isinstance(target, torch._ops.OpOverload):
            raise MalformedError(f"it calls {name[:80]}, which {why}")
        hint = f"if you trust the file, load it with operators={{{space!r}}} (--allow-operators {space})"
        raise MissingOperatorError(f"the operator {name[:80]} {why}", hint)
    return target


def refused(target: Any, libraries: Collection[str] | None = ANY) -> str:
    """Why a file may not call an operator or function; empty if it may."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "" if target.name() in GRAPHS else "runs graphs in a way that no file may"
    if not isinstance(target, torch._ops.OpOverload):
        return "" if qualified_name(target) in FUNCTIONS else "is no operator of torch"
    return refusal(target, (target.namespace,) if libraries is ANY else libraries)


def library_of(target: object) -> str:
    """The Python module, or else the namespace, that defines an operator; empty for torch's own."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in ("aten", "prims", "prim"):
        return ""
    definition = torch._library.custom_ops.OPDEFS.get(target._schema.name)
    module = getattr(getattr(definition, "_init_fn", None), "__module__", None)
    return str(module or target.namespace)
