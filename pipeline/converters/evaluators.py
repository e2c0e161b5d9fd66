"""Define evaluators: converters for arithmetic on sizes, which add no layer.
They return a size as an expression over the program's symbols; layers compute it only if another layer reads it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from pipeline.converters.binding import CompilationSettings, Rejection, aten, converts
from pipeline.network.context import SymbolicInt
from pipeline.network.net import Net
from pipeline.records.wording import kind_of
from pipeline.shapes.environment import expression


@converts(operator.getitem)
def getitem(net: Net, a: Sequence[Any], b: int) -> Any:
    """getitem(sequence, index). Returns one of an operator's results."""
    return a[b]


def _check_int(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The result must be an int or symbolic int; symbolic floats and bools are computed in Python."""
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
    """Return the size that the node computes: an int, or a symbolic expression."""
    expr = expression(net.node.meta["val"])
    return expr if isinstance(expr, int) else SymbolicInt(expr)


def _check_condition(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The result of a comparison of sizes must be known at compile time, since engines have no Python bools."""
    reason = f"{node.name} is a Python bool of dynamic sizes, which engines do not support"
    return isinstance(node.meta.get("val"), bool) or Rejection(reason)


@converts(
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, torch.sym_not),
    validator=_check_condition,
)
def known_condition(net: Net) -> bool:
    """Return the bool that the node computes, which is known at compile time."""
    value: bool = net.node.meta["val"]
    return value


@converts(aten._assert_tensor_metadata.default)
def _assert_tensor_metadata(net: Net) -> None:
    """_assert_tensor_metadata(Tensor a, …) -> (). The assertion was checked at capture, and needs no layer."""
