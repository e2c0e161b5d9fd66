"""Define evaluators: converters that add no layer. Sizes are expressions over the program's symbols; layers compute a
size only if another layer reads it (``pipeline.impl.base.shape_tensor``)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from pipeline.aten.types import aten
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.network.context import SymbolicInt
from pipeline.network.net import Net
from pipeline.records.wording import kind_of
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import expression


@converts(operator.getitem)
def getitem(net: Net, a: Sequence[Any], b: int) -> Any:
    """getitem(sequence, index). Returns one of an operator's results."""
    return a[b]


def _check_int(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Engines compute with symbolic ints; symbolic floats and bools stay in Python."""
    value = node.meta.get("val")
    if isinstance(value, (int, torch.SymInt)):
        return True
    return Rejection(f"{node.name} is {kind_of(value)}: engines compute with symbolic ints only")


@converts(
    *(aten.sym_size.int, aten.sym_numel.default, aten.sym_stride.int, aten.sym_storage_offset.default),
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.pow),
    *(operator.truediv, torch.sym_max, torch.sym_min),
    validator=_check_int,
)
def size(net: Net) -> Any:
    """Return the node's value: an int, or its expression."""
    expr = expression(net.node.meta["val"])
    return expr if isinstance(expr, int) else SymbolicInt(expr)


def _check_condition(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """A condition on sizes is known, or a guard of the program; engines have no Python bools."""
    reason = f"{node.name} is a Python bool of dynamic sizes, which engines do not support"
    return isinstance(node.meta.get("val"), bool) or Rejection(reason)


@converts(
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, torch.sym_not),
    validator=_check_condition,
)
def condition(net: Net) -> bool:
    """Return the node's value: a bool."""
    value: bool = net.node.meta["val"]
    return value


@converts(aten._assert_tensor_metadata.default)
def _assert_tensor_metadata(net: Net) -> None:
    """_assert_tensor_metadata(Tensor a, …) -> (). What it asserts was checked when the model was captured."""
