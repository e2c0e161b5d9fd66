"""Track quotients of sizes in tensors of floats, up to where they are whole again: ``torch.ceil((n - 7) / 4).to(int)``.

A tensor of one float that is made from known whole numbers carries them as a ratio. Rounded up or down it is whole, and
the number of a cast to ints is known (`known_numbers`). That holds as long as floats compute it right: where numbers
are small enough that no rounding on the way reaches the next whole number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import torch
from attrs import frozen
from torch._subclasses.fake_tensor import FakeTensor

from pipeline.aten.types import Argument, Target

aten = torch.ops.aten

RATIO: Final = "_pipeline_ratio"
"""The attribute of fakes with the ratio that they have, behind the count of writes to them at which they have it."""
LARGEST: Final = 2**22
ROUNDINGS: Final = 3
"""How large the numerator and denominator may be together, and how many operations may round: the error is at most
ROUNDINGS * 2**-24 * LARGEST / denominator, less than what the ratio is apart from the next whole number."""

Whole: TypeAlias = int | torch.SymInt


@frozen
class Ratio:
    """A quotient of whole numbers that a float has, but for as many roundings."""

    above: Whole
    below: int = 1
    roundings: int = 0

    @property
    def is_certain(self) -> bool:
        """Whether the float is rounded to the same whole numbers as the quotient."""
        least, most = _bounds(self.above)
        return self.roundings <= ROUNDINGS and max(-least, most) + self.below <= LARGEST


def _bounds(number: Whole) -> tuple[float, float]:
    if isinstance(number, int):
        return number, number
    found = number.node.shape_env.bound_sympy(number.node.expr)
    return float(found.lower), float(found.upper)


def _divided(a: Ratio, b: Ratio) -> Ratio | None:
    below = b.above
    if not isinstance(below, int) or below <= 0 or b.below != 1:
        return None
    return Ratio(a.above, a.below * below, a.roundings + 1)


def _added(a: Ratio, b: Ratio, alpha: object = 1) -> Ratio | None:
    if type(alpha) is not int:
        return None
    above = a.above * b.below + alpha * b.above * a.below
    return Ratio(above, a.below * b.below, a.roundings + b.roundings + 1)


def _subtracted(a: Ratio, b: Ratio, alpha: object = 1) -> Ratio | None:
    return _added(a, b, -alpha) if type(alpha) is int else None


RULES: Mapping[object, Callable[..., Ratio | None]] = {
    aten.div.Tensor: _divided,
    aten.div.Scalar: _divided,
    aten.add.Tensor: _added,
    aten.add.Scalar: _added,
    aten.sub.Tensor: _subtracted,
    aten.sub.Scalar: _subtracted,
    aten.ceil.default: lambda a: Ratio(-(-a.above // a.below)),
    aten.floor.default: lambda a: Ratio(a.above // a.below),
}
"""The ratio of a result, of tensors of one float."""


def note(
    func: Target, made: Argument, args: Argument, kwargs: Argument, number: Callable[[torch.Tensor], object]
) -> None:
    """Note the ratio of a call's result, if it has one. ``number`` gives the known number of a tensor."""
    if func not in RULES or not isinstance(made, FakeTensor) or made.dtype not in (torch.float32, torch.float64):
        return
    if made.dim() > 0 or len(args) > 2:
        return
    ratios = [_ratio(arg, number) for arg in args]
    if None in ratios:
        return
    ratio = RULES[func](*ratios, **kwargs)
    if ratio is not None and ratio.is_certain:
        vars(made)[RATIO] = made._version, ratio


def whole(tensor: torch.Tensor) -> Whole | None:
    """The whole number that a tensor of one float is known to have."""
    ratio = _noted(tensor)
    return ratio.above if ratio is not None and ratio.below == 1 and not ratio.roundings else None


def _noted(tensor: torch.Tensor) -> Ratio | None:
    version, ratio = vars(tensor).get(RATIO, (-1, None))
    return ratio if version == tensor._version else None


def _ratio(arg: object, number: Callable[[torch.Tensor], object]) -> Ratio | None:
    """The ratio that an argument of a call is."""
    if isinstance(arg, torch.Tensor):
        if arg.is_floating_point():
            return _noted(arg)
        arg = number(arg)
    return Ratio(arg) if type(arg) in (int, torch.SymInt) else None  # type: ignore[arg-type]
