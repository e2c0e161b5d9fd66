"""An immutable registry of the Python functions that evaluate TorchScript nodes, by the kind of node."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import torch
from attrs import frozen

from pipeline.errors import CaptureError
from pipeline.export_fixes.torchscript.graph import Node, Value
from pipeline.frozen import FrozenDict
from pipeline.records.wording import kind_of

Evaluator: TypeAlias = Callable[..., Value]

_KEY = re.compile(r"(?P<kind>\w+::\w+)(?:\.(?P<overload>\w+))?")


@frozen(eq=False)
class Call:
    """The node that an evaluator is called for; the node's blocks are functions from inputs to tuples of outputs."""

    node: Node
    blocks: tuple[Callable[..., tuple[Value, ...]], ...] = ()

    @property
    def kind(self) -> str:
        """The node's kind, such as ``prim::If``."""
        return self.node.kind

    @property
    def attributes(self) -> FrozenDict[str, Value]:
        """The node's attributes by name, such as ``attributes["name"]`` of a `prim::GetAttr`."""
        return self.node.attributes

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the node's outputs, as TorchScript prints them."""
        return self.node.types

    @property
    def where(self) -> str:
        """The user's source line, such as ``model.py:12, y = x + 1``; empty if the graph does not contain it."""
        return self.node.location.where

    def error(self, why: str, hint: str = "") -> CaptureError:
        """Return the error for a node that cannot be evaluated: its kind and line, the reason ``why``, a ``hint``."""
        at = f" ({self.where})" if self.where else ""
        return CaptureError(f"TorchScript's {self.kind}{at} cannot be compiled: {why}", hint)


def evaluator_of_inputs_only(function: Callable[..., Value]) -> Evaluator:
    """Return an evaluator that calls a function with the values of the node's inputs only, without the `Call`."""
    return lambda call, *values: function(*values)


class Evaluators(FrozenDict[str, Evaluator]):
    """Evaluators by the kind of their nodes, ``prim::ListConstruct``, or by one overload, ``aten::add.int``.

    An evaluator is called with a `Call` and the values of the node's inputs. It returns the value of the node's output,
    or a tuple for several outputs; without outputs the result is ignored. Values are tensors, numbers (dynamic sizes
    are ``torch.SymInt``), strings, lists, tuples, dicts and modules; dtypes and layouts are TorchScript's integer
    codes. Immutable: `register` and `without` return new ``Evaluators``.
    """

    def register(self, key: str, evaluator: Evaluator) -> Evaluators:
        """Return evaluators with ``evaluator`` added under a key. It replaces evaluators of the same key and, if the
        key is a kind, of all overloads of the kind.

        Raises:
            TypeError: the evaluator cannot be called.
            ValueError: the key is not the kind of a node, or TorchScript has no such operator or overload.
        """
        if not callable(evaluator):
            raise TypeError(f"the evaluator of {key} must be a function, got {kind_of(evaluator)}")
        _check_node_kind(key)
        return Evaluators({**self.without(key), key: evaluator})

    def without(self, key: str) -> Evaluators:
        """Return a copy without the evaluators of an operator, ``aten::add``, or of one overload, ``aten::add.int``."""
        return Evaluators({k: f for k, f in self.items() if k != key and not k.startswith(f"{key}.")})

    def find(self, node: Node) -> Evaluator | None:
        """Return the evaluator registered for a node's overload, or else for its kind, or None."""
        return self.get(node.name) or self.get(node.kind)

    def __repr__(self) -> str:
        return f"<Evaluators of {len(self)} kinds of nodes>"


def _check_node_kind(key: object) -> None:
    """Raise `ValueError` unless a key is a kind of node, or an overload of one, that TorchScript has."""
    match = _KEY.fullmatch(key) if isinstance(key, str) else None
    if match is None:
        raise ValueError(f"{key!r} is no kind of TorchScript node, such as 'prim::ListConstruct' or 'aten::add.int'")
    kind, overload = match["kind"], match["overload"]
    known = overloads(kind)
    if kind.startswith("aten::") and not known:
        near = ", ".join(difflib.get_close_matches(kind, _all_operator_names(), 3))
        raise ValueError(f"TorchScript has no operator {kind}{f'; similar names: {near}' if near else ''}")
    if known and overload not in (None, *known):
        raise ValueError(f"{kind} has no overload {overload!r}; its overloads are {', '.join(known)}")


def overloads(kind: str, *, tensorless: bool = False) -> tuple[str, ...]:
    """Return the names of a kind's overloads in TorchScript; ``tensorless``: of those without tensor arguments."""
    schemas = torch._C._jit_get_schemas_for_operator(kind)
    chosen = (s for s in schemas if not tensorless or not any("Tensor" in str(a.type) for a in s.arguments))
    return tuple(s.overload_name or "default" for s in chosen)


@lru_cache(maxsize=1)
def _all_operator_names() -> tuple[str, ...]:
    return tuple(sorted({schema.name for schema in torch._C._jit_get_all_schemas()}))
