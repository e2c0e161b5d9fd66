"""Names for ATen's operators, and type aliases for graphs, calls and pytrees, which torch types loosely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch._ops import OpOverload

aten: Final = torch.ops.aten

Node: TypeAlias = torch.fx.Node

Operator: TypeAlias = OpOverload[..., Any]
"""An overload of an operator; its schema, not Python's types, states its arguments."""

Function: TypeAlias = Callable[..., Any]
"""A function that replaces a call in a graph: a decomposition, a kernel or a rule."""

Target: TypeAlias = Any
"""The target of a node: an `Operator`, a higher-order operator, a Python function, or a name. torch's own type for it,
``Callable | str``, lacks the attributes of operators."""

Argument: TypeAlias = Any
"""An argument or the value of a call in a graph: a node, a tensor, a number, None, or containers of these."""

Leaf: TypeAlias = Any
"""A leaf of a program's input and output pytrees: a tensor, a number, or a value of the user's own."""

Spec: TypeAlias = Any
"""The structure of a pytree (torch's ``TreeSpec``), or an entry of ``dynamic_shapes`` for one."""
