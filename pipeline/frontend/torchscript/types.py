"""What the types of TorchScript's own are called here: torch does not annotate them."""

from __future__ import annotations

from typing import Any, TypeAlias

Value: TypeAlias = Any
"""What a node computes: a tensor, number, string, list, tuple, dict, module or object."""

Foreign: TypeAlias = Any
"""A graph, block, node, value, type or module as ``torch._C`` has them."""
