"""Convert the entries of the setting ``torch_executed_ops`` (operators, names, predicates); match nodes with them."""

import re
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import resolve_name

from pipeline.errors import PipelineError
from pipeline.records.wording import did_you_mean, items_of

ModulePredicate: TypeAlias = Callable[[str], bool]
TorchExecuted: TypeAlias = OpOverload[..., Any] | str | ModulePredicate


def to_executed_entries(value: object) -> frozenset[TorchExecuted]:
    """Convert the setting `torch_executed_ops`, which lists operators to run in PyTorch, to operator overloads, names
    and predicates; an overload packet (``torch.ops.aten.add``) becomes all its overloads."""
    items = items_of(value, "torch_executed_ops must be a collection of operators, names or predicates")
    return frozenset(entry for item in items for entry in _entries_of_item(item))


def _entries_of_item(item: object) -> Iterable[TorchExecuted]:
    """Return the entries for an item of ``torch_executed_ops``: the item, or all overloads of a packet."""
    if isinstance(item, OpOverloadPacket):
        return [getattr(item, overload) for overload in item.overloads()]
    if item is torch.cond:
        return [torch.ops.higher_order.cond]
    if isinstance(item, str):
        return _entries_by_name(item)
    if isinstance(item, type) or (traced := name_of_traced_function(item)):
        name = item.__name__ if isinstance(item, type) else traced
        raise TypeError(
            f"torch_executed_ops: {name} is no operator: pass those that it calls (torch.ops.aten.relu.default), or a "
            'predicate on module paths (lambda path: path.startswith("encoder."))'
        )
    if isinstance(item, OpOverload) or callable(item):
        return [item]
    raise TypeError(f"torch_executed_ops: {item!r} is not an operator, a qualified name or a predicate on module paths")


def name_of_traced_function(item: object) -> str:
    """Return the name of a function such as ``torch.relu``, which no traced graph calls; "" if it is none."""
    is_torchs = not isinstance(item, OpOverload) and callable(item) and not isinstance(item, type)
    name = resolve_name(item) if is_torchs else None
    return "" if name is None or name.startswith("torch.sym_") else str(name)


def _entries_by_name(name: str) -> Iterable[TorchExecuted]:
    """Return the entries for an operator name: for `aten.topk` all overloads. An unknown aten name is an error."""
    match = re.fullmatch(r"(?:torch\.ops\.)?(\w+)(?:\.|::)(\w+)(?:\.(\w+))?", name)
    if match is None:
        raise ValueError(
            f"torch_executed_ops: {name!r} is not an operator's name, such as 'aten.topk.default' or 'aten::topk'"
        )
    namespace, operator, overload = match.groups()
    if namespace == "higher_order":
        return [f"torch.ops.higher_order.{operator}"]
    packet = getattr(getattr(torch.ops, namespace), operator, None) if namespace in ("aten", "prims") else None
    if namespace in ("aten", "prims") and (packet is None or overload not in (None, *packet.overloads())):
        known = dir(getattr(torch.ops, namespace)) if packet is None else packet.overloads()
        stem = namespace if packet is None else f"{namespace}.{operator}"
        close = did_you_mean(operator if packet is None else overload, known, "").replace("'", f"'{stem}.", 1)
        raise ValueError(f"torch_executed_ops: there is no operator {name!r}{close and f'; {close}'}")
    return _entries_of_item(packet) if packet is not None and overload is None and "::" not in name else [name]


def entry_matches_node(entry: TorchExecuted, target: object, module_path: str) -> bool:
    """Return whether an entry of `torch_executed_ops` matches a node with this target, in the module at this path."""
    if isinstance(entry, str):
        return entry in qualified_names(target)
    is_torchs = (getattr(entry, "__module__", None) or "").partition(".")[0] == "torch"  # torch.sym_min: no predicate
    if entry is target or isinstance(entry, OpOverload | BuiltinFunctionType) or is_torchs:
        return entry is target
    try:
        return bool(entry(module_path))
    except Exception as error:
        raise PipelineError(
            f"torch_executed_ops: the predicate {entry_name(entry)} raised {type(error).__name__}: {error}, for the "
            f"module path {module_path!r}",
            "a predicate must accept the path of any submodule, such as 'encoder.0', and return a bool",
        ) from error


def qualified_names(target: object) -> frozenset[str]:
    """Return all names of an operator: `aten.topk.default`, `torch.ops.aten.topk.default`, `aten::topk`."""
    if isinstance(target, OpOverload):
        tail = str(target).partition(".")[2]
        return frozenset({str(target), f"torch.ops.{target}", target.name(), f"{target.namespace}::{tail}"})
    if isinstance(target, str):
        return frozenset({target})
    return frozenset({torch.typename(target), f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', '')}"})


def entry_name(entry: object) -> str:
    """Return an entry of `torch_executed_ops` as text, without memory addresses, which differ between processes."""
    if isinstance(entry, OpOverload):
        return f"torch.ops.{entry}"
    if isinstance(entry, str):
        return repr(entry)
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}.{named.__qualname__}"
