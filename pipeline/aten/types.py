"""Define names for ATen's operators, and types for graphs, calls and pytrees, for which torch's are too loose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch._ops import OpOverload

aten: Final = torch.ops.aten

Node: TypeAlias = torch.fx.Node

Operator: TypeAlias = OpOverload[..., Any]
"""An operator overload. Its arguments are described by its schema instead of by Python types."""

Function: TypeAlias = Callable[..., Any]
"""A function that replaces calls in a graph, such as a decomposition, a kernel or a rewrite rule."""

Target: TypeAlias = Any
"""The target of a node: an `Operator`, a higher-order operator, a Python function or a name. torch's own type,
``Callable | str``, lacks the attributes of operators."""

Argument: TypeAlias = Any
"""The argument or result of a call in a graph: a node, a tensor, a number, None, or a container of these."""

Leaf: TypeAlias = Any
"""A leaf of a program's input or output pytree: a tensor, a number, or an object of the user's."""

Spec: TypeAlias = Any
"""The structure of a pytree (torch's ``TreeSpec``), or an entry of ``dynamic_shapes`` for one."""
