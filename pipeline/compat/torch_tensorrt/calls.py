"""``Call``: the ATen calls that a building block stands for, as records inside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from attrs import field, frozen

from pipeline.aten.types import Argument, Operator, aten
from pipeline.frozen import FrozenDict

__all__ = ["Argument", "Call", "Expression", "Item", "aten", "call"]


def _keywords(kwargs: Mapping[str, Argument]) -> FrozenDict[str, Argument]:
    return FrozenDict(kwargs)


@frozen(eq=False)
class Call:
    """An ATen call on a converter's arguments: tensors, numbers, sizes, and further calls."""

    target: Operator
    args: tuple[Argument, ...] = ()
    kwargs: FrozenDict[str, Argument] = field(factory=FrozenDict, converter=_keywords)

    @classmethod
    def of(cls, target: Operator, values: Sequence[Argument]) -> Call:
        """Create the call of an operator with all arguments in its schema's order."""
        arguments = list(zip(target._schema.arguments, values, strict=True))
        plain = tuple(value for argument, value in arguments if not argument.kwarg_only)
        return cls(target, plain, {argument.name: value for argument, value in arguments if argument.kwarg_only})

    def __getitem__(self, index: int) -> Item:
        return Item(self, index)


@frozen(eq=False)
class Item:
    """One of the results of a call that returns several."""

    call: Call
    index: int


Expression: TypeAlias = Call | Item | list[Call | Item | None]
"""The value of a block: a call, one of its results, or several of these; None for a missing result."""


def call(target: Operator, *args: Argument, **kwargs: Argument) -> Call:
    """Return the call of an operator."""
    return Call(target, args, FrozenDict(kwargs))
