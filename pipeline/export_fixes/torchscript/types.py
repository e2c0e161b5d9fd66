"""Names for TorchScript's own types, which torch does not annotate."""

from __future__ import annotations

from typing import Any, TypeAlias

Value: TypeAlias = Any
"""What a node computes: a tensor, number, string, list, tuple, dict, module or object."""

Foreign: TypeAlias = Any
"""A graph, block, node, value, type or module as ``torch._C`` has them."""
