"""Look operators up by name: ``aten.add.Tensor``, ``higher_order.cond``, ``operator.add``, ``torch.sym_max``.

A loaded program may call operators that only compute (`pipeline.aten.effects`), operators of libraries that `load`'s
caller allows, four that run graphs of the file (control flow), and arithmetic on sizes. A look-up imports nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import torch
from attrs import frozen
from torch._ops import HigherOrderOperator, OpOverload

from pipeline.artifact.json_data import MalformedError, MissingOperatorError
from pipeline.aten.calls import FUNCTIONS, find_operator, qualified_name
from pipeline.aten.effects import SPACES, reason_to_refuse
from pipeline.errors import ArtifactError

ANY: Final = None
"""The value of ``libraries`` that allows the operators of all libraries."""
GRAPHS: Final[Mapping[str, int]] = {"cond": 2, "while_loop": 2, "map_impl": 1, "scan": 1}
"""The control-flow operators that run graphs, each with the number of graphs among its first arguments (after the
condition of ``cond``)."""


@frozen
class OperatorName:
    """The name of an operator that runs in an engine, in place of the operator, which this process need not have."""

    name: str

    def __str__(self) -> str:
        return self.name

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise ArtifactError(f"{self.name} cannot be called: only its name was saved, since it runs in an engine")

    @property
    def __name__(self) -> str:
        return self.name


def operator_name(target: object) -> str:
    """Return the name by which an operator or function can be found again; raise an `ArtifactError` if it has none."""
    name = readable_target_name(target)
    if isinstance(target, (OpOverload, HigherOrderOperator, OperatorName)) or name in FUNCTIONS:
        return name
    why = f"{name} cannot be saved: it is not an operator of torch"
    raise ArtifactError(why, "register it with torch.library.custom_op")


def readable_target_name(target: object) -> str:
    """Return a readable name for any target of a node."""
    if isinstance(target, OperatorName):
        return target.name
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return qualified_name(target)


def find_callable(name: str) -> Any:
    """Return the operator or function of this name, even if files must not call it; None if this process lacks it."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    space, _, short = name.partition(".")
    return torch._ops._higher_order_ops.get(short) if space == "higher_order" else find_operator(name)


def find_allowed_operator(name: str, allowed_libraries: Collection[str] | None = (), library: str = "") -> Any:
    """Return the operator or function of this name, if a file may call it.

    allowed_libraries: the namespaces of allowed libraries other than torch; `ANY` (None) for all. library: the module
    that defines the operator, for the error.

    Raises:
        MissingOperatorError: this process lacks the operator, or its library is not allowed; the hint says what to do.
        MalformedError: no file may call it: it has side effects, for example.
    """
    target, space = find_callable(name), name.partition(".")[0]
    if target is None:
        hint = f"import {library or space[:60]}, which defines it, before pipeline.load" if space not in SPACES else ""
        raise MissingOperatorError(f"the file calls {name[:80]}, an operator that this process does not have", hint)
    if why := refusal_reason(target, allowed_libraries):
        if space in SPACES or not isinstance(target, OpOverload):
            raise MalformedError(f"the file calls {name[:80]}, which {why}")
        hint = f"if you trust the file, load it with operators={{{space!r}}} (--allow-operators {space})"
        raise MissingOperatorError(f"the operator {name[:80]} {why}", hint)
    return target


def refusal_reason(target: Any, allowed_libraries: Collection[str] | None = ANY) -> str:
    """Return the reason why a file must not call an operator or function; empty if it may call it."""
    if isinstance(target, HigherOrderOperator):
        return "" if target.name() in GRAPHS else "runs graphs, and is not one of those that files may call"
    if not isinstance(target, OpOverload):
        return "" if qualified_name(target) in FUNCTIONS else "is not an operator of torch"
    return reason_to_refuse(target, (target.namespace,) if allowed_libraries is ANY else allowed_libraries)


def defining_library(target: object) -> str:
    """Return the Python module, or else the namespace, that defines an operator; empty for torch's own."""
    if not isinstance(target, OpOverload) or target.namespace in ("aten", "prims", "prim"):
        return ""
    definition = torch._library.custom_ops.OPDEFS.get(target._schema.name)
    module = getattr(getattr(definition, "_init_fn", None), "__module__", None)
    return str(module or target.namespace)
