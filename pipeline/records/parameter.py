"""``Parameter``: one parameter of a model's ``forward``, by which calls may name an input or leave it out."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen
class Parameter:
    """A parameter of the model's ``forward``, in the order of its signature. ``has_default``: whether it has a default
    that is a plain value (None, a bool, number or string); others cannot be compared with what a program was compiled
    for."""

    name: str
    positional: bool = True
    has_default: bool = False
    default: Any = None
