"""Read the result type of a node from its fake tensor, and cast results of building blocks to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.support import Target
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net


def result_of(net: Net) -> torch.Tensor:
    """Return the fake tensor of the node's result, the first if there are several."""
    value = net.node.meta["val"]
    first: torch.Tensor = value if isinstance(value, torch.Tensor) else value[0]
    return first


def as_result(net: Net, x: ITensor) -> ITensor:
    """Return ``x`` in the dtype of the node's result; bytes wrap."""
    dtype = result_of(net).dtype
    return base.byte(net, x) if dtype == torch.uint8 else base.cast(net, x, dtype)


def by_operator(table: Mapping[tuple[Any, ...], Iterable[Target]]) -> dict[Target, tuple[Any, ...]]:
    """Turn a table from rows to operators into one from operators to rows."""
    return {target: row for row, targets in table.items() for target in targets}


def by_row(net: Net, row: Sequence[Any], operands: Sequence[Value]) -> ITensor:
    """Convert an operator by its row of a table: a building block and its arguments before the operands."""
    block, *operation = row
    return as_result(net, block(net, *operation, *operands))
