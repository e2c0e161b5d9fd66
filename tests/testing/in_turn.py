"""Values of one parameter beside those of another, in turn: each is tested, and not each with each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import pytest

DEVICES = (None, "cuda")


def in_turn(names: str, values: Iterable[Any], others: Sequence[Any] = DEVICES) -> pytest.MarkDecorator:
    """Parametrize a test with each of ``values`` and one of ``others``."""
    pairs = [(value, other) for value, other in zip(values, cycle(others), strict=False)]
    return pytest.mark.parametrize(names, pairs, ids=["-".join(map(_said, pair)) for pair in pairs])


def _said(value: Any) -> str:
    return getattr(value, "__name__", str(value))
