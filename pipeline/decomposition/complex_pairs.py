"""Represent complex values as pairs of reals, and define bilinear operators on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from pipeline.aten.types import Argument

Rule: TypeAlias = Callable[..., Any]


class Pair(NamedTuple):
    """A complex value: its parts are tensors of one shape and dtype, or numbers."""

    real: Argument
    imag: Argument


def bilinear(product: Rule) -> Rule:
    """Return the rule of a bilinear operator: four real products, or two if one of the operands is real."""

    def rule(a: Argument, b: Argument) -> Pair:
        if not isinstance(a, Pair):
            return Pair(product(a, b.real), product(a, b.imag))
        if not isinstance(b, Pair):
            return Pair(product(a.real, b), product(a.imag, b))
        real = product(a.real, b.real) - product(a.imag, b.imag)
        return Pair(real, product(a.real, b.imag) + product(a.imag, b.real))

    return rule


times = bilinear(torch.mul)
