"""Look operators up by name: ``aten.add.Tensor``, ``higher_order.cond``, ``operator.add``, ``torch.sym_max``.

Reading a name looks it up among torch's operators and a fixed list of functions; it imports nothing.
"""

from __future__ import annotations

import builtins
import math
import operator
import re
from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen

from pipeline.errors import ArtifactError
from pipeline.recipes import qualified_name

_NAME = re.compile(r"\w+\.\w+(\.\w+)?", re.ASCII)
_FUNCTIONS = {
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


def _known() -> dict[str, object]:
    found = {}
    for module, names in _FUNCTIONS.items():
        for name in names:
            if hasattr(module, name):
                found[qualified_name(getattr(module, name))] = getattr(module, name)
    return found


FUNCTIONS: Mapping[str, object] = _known()


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


def target_of(name: str) -> Any:
    """The operator of a name, or None where this process has none."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    namespace, short, *overload = name.split(".")
    if namespace == "higher_order":
        return torch._ops._higher_order_ops.get(short)
    packet = getattr(_namespace(namespace), short, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket) or overload[:1] not in [
        [each] for each in packet.overloads()
    ]:
        return None
    return getattr(packet, overload[0])


def _namespace(name: str) -> object:
    found = getattr(torch.ops, name, None)
    return found if isinstance(found, torch._ops._OpNamespace) else None


def library_of(target: object) -> str:
    """The Python module, or else the namespace, that defines an operator; empty for torch's own."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in ("aten", "prims", "prim"):
        return ""
    definition = torch._library.custom_ops.OPDEFS.get(target._schema.name)
    module = getattr(getattr(definition, "_init_fn", None), "__module__", None)
    return str(module or target.namespace)
