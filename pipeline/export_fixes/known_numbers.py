"""Rules for the largest element of tensors that hold sizes: ``torch.tensor(x.shape[0]).item()`` is ``x.shape[0]``.

During a trace, torch creates a new symbol for each number that Python reads from a tensor, and no engine can compute
with that symbol. The rules avoid such symbols: they track the largest element of integer tensors that are computed from
sizes, as an expression, through arithmetic and operators that move elements. For a tensor with one element, this is the
number that Python reads.

A tensor of one float that is computed from known integers has a `Ratio`. Rounding it up or down returns a known
integer: ``torch.ceil((n - 7) / 4).to(int)``. The rules apply if float rounding errors cannot reach the next integer.
Other numbers computed from floats are left to torch, because Python computes in another precision.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from attrs import frozen
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.op_predicates import LIFTS
from pipeline.aten.traits import SAME, Kind, operators_of_kind
from pipeline.aten.types import Argument, Target, aten
from pipeline.program import READS_DATA

MAX_RATIO_SIZE: Final = 2**22
MAX_ROUNDINGS: Final = 3
"""The limits of a `Ratio`: numerator plus denominator, and the number of roundings. The error is at most MAX_ROUNDINGS
* 2**-24 * MAX_RATIO_SIZE / denominator, which is less than the distance of the ratio to the next integer."""

Integer: TypeAlias = int | torch.SymInt
Rule: TypeAlias = Callable[..., Any]


@frozen
class Ratio:
    """The exact quotient ``numerator / denominator`` that a one-element float tensor, computed from sizes,
    approximates. ``roundings``: the number of float operations that computed it, each of which may round."""

    numerator: Integer
    denominator: int = 1
    roundings: int = 0

    @property
    def is_rounding_certain(self) -> bool:
        """Whether ``ceil`` and ``floor`` of the float surely equal those of the exact quotient."""
        size: float
        if isinstance(self.numerator, int):
            size = abs(self.numerator)
        else:
            found = self.numerator.node.shape_env.bound_sympy(self.numerator.node.expr)
            size = max(-float(found.lower), float(found.upper))
        return self.roundings <= MAX_ROUNDINGS and size + self.denominator <= MAX_RATIO_SIZE

    @property
    def exact_integer(self) -> Integer | None:
        """The integer that the float equals exactly; None if the float is a fraction or was rounded."""
        return self.numerator if self.denominator == 1 and not self.roundings else None


Number: TypeAlias = int | torch.SymInt | torch.SymBool | Ratio
"""What is known of a tensor: the largest element of ints or bools, or the `Ratio` of a single float."""


def _divide_ratios(a: Ratio, b: Ratio) -> Ratio | None:
    """Return the `Ratio` of ``a / b``; None unless ``b`` is a positive Python int."""
    below = b.numerator
    if not isinstance(below, int) or below <= 0 or b.denominator != 1:
        return None
    return Ratio(a.numerator, a.denominator * below, a.roundings + 1)


def _add_ratios(a: Ratio, b: Ratio, alpha: object = 1) -> Ratio | None:
    """Return the `Ratio` of ``a + alpha * b``; None unless ``alpha`` is a Python int."""
    if type(alpha) is not int:
        return None
    above = a.numerator * b.denominator + alpha * b.numerator * a.denominator
    return Ratio(above, a.denominator * b.denominator, a.roundings + b.roundings + 1)


RATIO_RULES: Mapping[object, Rule] = {
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _divide_ratios),
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _add_ratios),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), lambda a, b, alpha=1: _add_ratios(a, b, -alpha)),
    aten.ceil.default: lambda a: Ratio(-(-a.numerator // a.denominator)),
    aten.floor.default: lambda a: Ratio(a.numerator // a.denominator),
}
"""For each operator on one-element float tensors, the rule that computes the result's `Ratio` from the arguments'."""


def _last_of_arange(start: Argument, end: Argument, step: Argument = 1, **_: object) -> Argument:
    """Return the last element of ``torch.arange``; None unless the step is a positive Python int."""
    if not isinstance(step, int) or step <= 0:
        return None
    return start + (end - start - 1) // step * step


def _divide_integers(a: Argument, b: Argument, *, rounding_mode: str | None = "floor") -> object:
    """Return ``a // b``; None unless ``b`` is a positive Python int, and the rounding mode surely rounds down."""
    if not isinstance(b, int) or b <= 0:
        return None
    if rounding_mode == "trunc":  # which equals floor where a number is known to be nonnegative
        is_floor = a.node.expr.is_nonnegative if isinstance(a, torch.SymInt) else isinstance(a, int) and a >= 0
    else:
        is_floor = rounding_mode == "floor"
    return a // b if is_floor else None


def _clamp(a: object, min: object = None, max: object = None) -> object:
    a = a if min is None else torch.sym_max(a, min)
    return a if max is None else torch.sym_min(a, max)


def _not_equal(a: object, b: object) -> object:
    """Return ``a != b``. A symbolic bool supports only ``!= 0``, by which torch tests whether it is true."""
    if isinstance(a, torch.SymBool):
        return a if isinstance(b, int) and b == 0 else None
    return a != b


def _first_argument(a: object, *_: object, **__: object) -> object:
    return a


CREATION: Mapping[object, Rule] = {
    aten.scalar_tensor.default: _first_argument,
    aten.full.default: lambda _, value, **__: value,
    aten.arange.default: lambda end, **_: _last_of_arange(0, end),
    aten.arange.start: _last_of_arange,
    aten.arange.start_step: _last_of_arange,
}
"""For each operator that creates a tensor from numbers, the rule that computes its largest element."""

MOVES = operators_of_kind(*SAME, Kind.CASTS) | {aten.max.default, aten.amax.default}
"""Operators whose result has the same largest element as the input; no number is read from an empty tensor."""

ADDITION: Mapping[object, Rule] = {
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), lambda a, b, alpha=1: a + b * alpha),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), lambda a, b, alpha=1: a - b * alpha),
}
"""For each operator that adds a number to all elements, the rule that computes the new largest element."""

SCALARS: Mapping[object, Rule] = {
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), lambda a, b, alpha=1: b - a * alpha),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), operator.mul),
    **dict.fromkeys((aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default), _divide_integers),
    aten.neg.default: operator.neg,
    aten.maximum.default: torch.sym_max,
    aten.minimum.default: torch.sym_min,
    aten.clamp.default: _clamp,
    **{
        getattr(getattr(aten, name), overload): getattr(operator, name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Tensor", "Scalar")
    },
    aten.ne.Scalar: _not_equal,
}
"""For each operator on one-element tensors, the rule that computes the result's element."""

SELECTION: Mapping[object, Rule] = {aten.select.int: _first_argument}
"""Operators that select an element, with a rule that is valid for one-element tensors."""

BOOL_OPERATORS = MOVES | {aten.ne.Scalar, *SELECTION}
"""Operators whose rules accept a symbolic bool; all other rules compute with ints."""

FUNCTIONAL_VARIANTS: Mapping[object, object] = {
    getattr(getattr(aten, f"{name}_"), overload): getattr(getattr(aten, name), overload)
    for name in ("add", "sub", "mul")
    for overload in ("Tensor", "Scalar")
}
"""For each in-place operator, the functional operator that computes the value which it writes."""

RULES: Mapping[object, Rule] = {**CREATION, **dict.fromkeys(MOVES, _first_argument), **ADDITION, **SCALARS, **SELECTION}


def largest_element(
    func: Target, dtype: torch.dtype, rank: int, args: Sequence[Argument], kwargs: Argument, maxima: Sequence[Argument]
) -> Number | None:
    """Return the largest element of the result of ``func``, which has this dtype and rank; None if it is unknown.
    ``maxima``: the ``args`` with its largest element, or None if this is unknown, in place of each tensor."""
    if dtype in (torch.float32, torch.float64):
        return _result_ratio(func, kwargs, maxima) if func in RATIO_RULES and rank == 0 and len(args) < 3 else None
    if func not in RULES or dtype not in (torch.int64, torch.int32, torch.bool) or not _rule_fits(func, args, kwargs):
        return None
    values = [v.exact_integer if isinstance(v, Ratio) else v for v in maxima]
    if any(v is None for v, a in zip(values, args, strict=True) if isinstance(a, torch.Tensor)):
        return None
    if any(isinstance(v, torch.SymBool) for v in values) and func not in BOOL_OPERATORS:
        return None
    value: Number = RULES[func](*values, **kwargs)
    kinds = (bool, torch.SymBool) if dtype == torch.bool else (int, torch.SymInt)
    return value if type(value) in kinds and not free_unbacked_symbols(value) else None


def _result_ratio(func: Target, kwargs: Argument, maxima: Sequence[Argument]) -> Ratio | None:
    """Return the `Ratio` of an operator's float result by `RATIO_RULES`; None if an argument is unknown, or rounding
    the float may give another integer than rounding the quotient. ``maxima``: as in `largest_element`."""
    ratios = [v if isinstance(v, Ratio) else Ratio(v) if type(v) in (int, torch.SymInt) else None for v in maxima]
    made = None if None in ratios else RATIO_RULES[func](*ratios, **kwargs)
    return made if made is not None and made.is_rounding_certain else None


def _rule_fits(func: object, args: Argument, kwargs: Argument) -> bool:
    """Return whether an operator's rule in `RULES` is valid for these arguments. A rule knows only the largest element
    of each tensor, so most rules need 0-d tensors; that of ``add`` needs one only as its second argument."""
    if func in SELECTION:
        return isinstance(args[0], torch.Tensor) and all(isinstance(size, int) and size == 1 for size in args[0].shape)
    if func in ADDITION:
        alone, first = args[1:], isinstance(args[0], torch.Tensor)
    else:
        alone, first = args if func in SCALARS else (), True
    ranked = any(isinstance(a, torch.Tensor) and a.dim() > 0 for a in alone)
    return first and not ranked and not any(isinstance(a, torch.Tensor) for a in kwargs.values())


def is_determined_by_sizes(node: torch.fx.Node) -> bool:
    """Return whether sizes and constants alone determine the number that a node reads from a tensor."""
    if node.target not in READS_DATA:
        return False
    waiting, seen = list(node.all_input_nodes), set[torch.fx.Node]()
    while waiting:
        source = waiting.pop()
        if source in seen or not isinstance(source.meta.get("val"), torch.Tensor):
            continue
        if source.target not in RULES and source.target not in FUNCTIONAL_VARIANTS:
            return False
        seen.add(source)
        waiting += source.all_input_nodes if source.target not in LIFTS else ()
    return True
