"""Track numbers that Python reads from tensors made of sizes: ``torch.tensor(x.shape[0]).item()`` is ``x.shape[0]``.

torch creates a new symbol for each number that is read while it traces, and no engine can compute with that. Here a
tensor of ints that is made from sizes and numbers carries its largest element, an expression, through arithmetic and
operators that move elements; for a tensor with one element that is the number that is read. It is kept where torch
itself keeps numbers that were read (`FakeTensor.item_memo`), which is cleared when the tensor is written to. Numbers
computed from floats are left to torch, because Python computes in another precision, but for `ratios`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.op_predicates import LIFTS
from pipeline.aten.traits import SAME, Does, targets
from pipeline.aten.types import Argument, Function, Target
from pipeline.export_fixes import symbolic_division
from pipeline.program import READS_DATA

aten = torch.ops.aten

Number: TypeAlias = int | torch.SymInt | torch.SymBool
Rule: TypeAlias = Callable[..., Any]


def _last(start: Argument, end: Argument, step: Argument = 1, **_: object) -> Argument:
    """The last element of a range that goes up."""
    if not isinstance(step, int) or step <= 0:
        return None
    return start + (end - start - 1) // step * step


def _quotient(a: Argument, b: Argument, *, rounding_mode: str | None = "floor") -> object:
    if not isinstance(b, int) or b <= 0:
        return None
    return a // b if rounding_mode == "floor" or (rounding_mode == "trunc" and _is_no_less_than_0(a)) else None


def _is_no_less_than_0(a: Number) -> bool:
    """Whether a number is known to be 0 or more, so that to round down is to truncate."""
    return bool(a.node.expr.is_nonnegative) if isinstance(a, torch.SymInt) else isinstance(a, int) and a >= 0


def _clamped(a: object, min: object = None, max: object = None) -> object:
    a = a if min is None else torch.sym_max(a, min)
    return a if max is None else torch.sym_min(a, max)


def _differs(a: object, b: object) -> object:
    """``a != b``; torch checks by ``b != 0`` whether a bool is true."""
    if isinstance(a, torch.SymBool):
        return a if isinstance(b, int) and b == 0 else None
    return a != b


def _first(a: object, *_: object, **__: object) -> object:
    return a


MADE: Mapping[object, Rule] = {
    aten.scalar_tensor.default: _first,
    aten.full.default: lambda _, value, **__: value,
    aten.arange.default: lambda end, **_: _last(0, end),
    aten.arange.start: _last,
    aten.arange.start_step: _last,
}
"""The largest element of tensors made from numbers."""

MOVED = targets(*SAME, Does.CASTS) | {aten.max.default, aten.amax.default}
"""Operators that keep the largest element; a tensor without elements has none to read."""

ADDED: Mapping[object, Rule] = {
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), lambda a, b, alpha=1: a + b * alpha),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), lambda a, b, alpha=1: a - b * alpha),
}
"""Operators that add a number to all elements, and so to the largest."""

COMPUTED: Mapping[object, Rule] = {
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), lambda a, b, alpha=1: b - a * alpha),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), operator.mul),
    **dict.fromkeys((aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default), _quotient),
    aten.neg.default: operator.neg,
    aten.maximum.default: torch.sym_max,
    aten.minimum.default: torch.sym_min,
    aten.clamp.default: _clamped,
    **{
        getattr(getattr(aten, name), overload): getattr(operator, name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Tensor", "Scalar")
    },
    aten.ne.Scalar: _differs,
}
"""Operators that compute with tensors of one element."""

ALONE: Mapping[object, Rule] = {aten.select.int: _first}
"""Operators that have the element of a tensor of one."""

ON_BOOLS = MOVED | {aten.ne.Scalar, *ALONE}
"""Operators that pass bools on; all others would compute with them."""

WRITES: Mapping[object, object] = {
    getattr(getattr(aten, f"{name}_"), overload): getattr(getattr(aten, name), overload)
    for name in ("add", "sub", "mul")
    for overload in ("Tensor", "Scalar")
}
"""In-place operators, and those that return the written value."""

RULES: Mapping[object, Rule] = {**MADE, **dict.fromkeys(MOVED, _first), **ADDED, **COMPUTED, **ALONE}


def noting(dispatch: Function) -> Callable[..., object]:
    """Wrap `FakeTensorMode.dispatch` to note the known numbers of the tensors that it makes."""

    def dispatch_and_note(
        mode: object, func: Target, types: object, args: Argument = (), kwargs: Argument = None
    ) -> object:
        written = _known(WRITES[func], args[0], args, kwargs or {}) if func in WRITES else None
        made = dispatch(mode, func, types, args, kwargs or {})
        value = _known(func, made, args, kwargs or {}) if func in RULES else written
        if value is not None:
            made.item_memo = value
        else:
            symbolic_division.note(func, made, args, kwargs or {}, number_of)
        return made

    return dispatch_and_note


def left_out(specialize: Callable[..., object]) -> Callable[..., object]:
    """Wrap Dynamo's search for floats that are inputs: it takes each number of a tensor for a symbol."""

    def specialize_symbols(graph: Argument) -> object:
        values = [node.meta.get("example_value") for node in graph.graph.nodes]
        for value in values:
            if isinstance(value, FakeTensor) and isinstance(value.item_memo, int):
                value.item_memo = None
        return specialize(graph)

    return specialize_symbols


def _known(func: Target, made: Argument, args: Argument, kwargs: Argument) -> Number | None:
    """The largest element of a call's result, if it is known."""
    if not isinstance(made, FakeTensor) or made.dtype not in (torch.int64, torch.int32, torch.bool):
        return None
    if not _is_exact(func, args, kwargs):
        return None
    values = [number_of(a) if isinstance(a, torch.Tensor) else a for a in args]
    if any(v is None for v, a in zip(values, args, strict=True) if isinstance(a, torch.Tensor)):
        return None
    if any(isinstance(v, torch.SymBool) for v in values) and func not in ON_BOOLS:
        return None
    value = RULES[func](*values, **kwargs)
    kinds = (bool, torch.SymBool) if made.dtype == torch.bool else (int, torch.SymInt)
    return value if type(value) in kinds and not free_unbacked_symbols(value) else None


def _is_exact(func: object, args: Argument, kwargs: Argument) -> bool:
    """Whether the largest element of the result is the rule's for the largest of each tensor."""
    if func in ALONE:
        return isinstance(args[0], torch.Tensor) and all(isinstance(size, int) and size == 1 for size in args[0].shape)
    if func in ADDED:
        alone, first = args[1:], isinstance(args[0], torch.Tensor)
    else:
        alone, first = args if func in COMPUTED else (), True
    ranked = any(isinstance(a, torch.Tensor) and a.dim() > 0 for a in alone)
    return first and not ranked and not any(isinstance(a, torch.Tensor) for a in kwargs.values())


def number_of(tensor: torch.Tensor) -> object:
    """The largest element of a tensor, if it is known."""
    if tensor.is_floating_point():
        return symbolic_division.whole(tensor)
    constant = getattr(tensor, "constant", None)
    return getattr(tensor, "item_memo", None) if constant is None or constant.numel() != 1 else constant.item()


def indexing(override: Callable[..., object]) -> Callable[..., object]:
    """Wrap torch.export's handling of a call in the model: index tensors are replaced by their known numbers. torch
    would fix their value in the example (2.11 when it reads; 2.13 when it writes, or beside indices that are
    tensors)."""

    def override_indices(self: Argument, func: Target, args: Argument, kwargs: Argument) -> object:
        if getattr(func, "__name__", "") in ("__getitem__", "__setitem__") and isinstance(args[0], torch.Tensor):
            args = (args[0], _indices(args[1]), *args[2:])
        return override(self, func, args, kwargs)

    return override_indices


def _indices(index: Argument) -> object:
    if isinstance(index, tuple):
        return tuple(map(_indices, index))
    if isinstance(index, slice):
        return slice(_indices(index.start), _indices(index.stop), _indices(index.step))
    known = number_of(index) if isinstance(index, FakeTensor) and index.dim() == 0 else None
    return index.item() if isinstance(known, torch.SymInt) else index


def is_told(node: torch.fx.Node) -> bool:
    """Whether sizes and constants alone determine the number that a node reads from a tensor."""
    if node.target not in READS_DATA:
        return False
    waiting, seen = list(node.all_input_nodes), set[torch.fx.Node]()
    while waiting:
        source = waiting.pop()
        if source in seen or not isinstance(source.meta.get("val"), torch.Tensor):
            continue
        if source.target not in RULES and source.target not in WRITES:
            return False
        seen.add(source)
        waiting += source.all_input_nodes if source.target not in LIFTS else ()
    return True
