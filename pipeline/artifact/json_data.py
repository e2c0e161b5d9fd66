"""The type of the data that a manifest is written as and read from."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonData: TypeAlias = Any
"""What JSON has: None, bools, numbers, strings, lists of these, and dicts of these by strings. It is checked when it is
read, by the type of the field that it is for."""
