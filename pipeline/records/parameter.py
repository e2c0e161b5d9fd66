"""``Parameter``: a parameter of a model's ``forward``, so that calls can pass inputs by keyword or omit them."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen
class Parameter:
    """A parameter of the model's ``forward``, in the order of its signature. ``has_default``: whether its default is
    None, a bool, a number or a string; other defaults cannot be compared with the values that a program was compiled
    for."""

    name: str
    positional: bool = True
    has_default: bool = False
    default: Any = None
