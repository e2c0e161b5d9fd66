"""Where a write leaves nothing of a tensor, nothing reads the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import nn

from pipeline.testing import TensorSpec, check_model

aten = torch.ops.aten
Function: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Shape: TypeAlias = tuple[int | str, ...]


class Writes(nn.Module):
    """Its second result shares no memory with its first, though they have the same elements."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = y + 1
        return self.function(x, y), y


WHOLE: dict[str, tuple[Function, Shape, Shape]] = {
    "select": (lambda x, y: x.select_scatter(y[:, 0], 1, -1), (3, 1, "n"), (3, 1, "n")),
    "select of all": (lambda x, y: x.select_scatter(y, 0, 0), (1, "n"), ("n",)),
    "slice": (lambda x, y: x.slice_scatter(y, 2), (3, 1, "n"), (3, 1, "n")),
    "slice beyond the end": (lambda x, y: x.slice_scatter(y, 0, 0, 99), ("n", 4), ("n", 4)),
    "diagonal": (lambda x, y: x.diagonal_scatter(y, 0, 0, 2), (1, "n", 1), ("n", 1)),
    "slice of another dtype": (lambda x, y: x.slice_scatter(y.half(), 0), ("n", 4), ("n", 4)),
    "select of another dtype": (lambda x, y: x.select_scatter(y.half(), 0, 0), (1, "n"), ("n",)),
}
PART: dict[str, tuple[Function, Shape, Shape]] = {
    "select": (lambda x, y: x.select_scatter(y, 1, -1), (3, 2, "n"), (3, "n")),
    "select of a free dim": (lambda x, y: x.select_scatter(y, 1, 0), (3, "n"), (3,)),
    "slice": (lambda x, y: x.slice_scatter(y, 0, 1, None, 2), (3, "n"), (1, "n")),
    "slice of a free dim": (lambda x, y: x.slice_scatter(y[:, :-1], 1, 1), (3, "n"), (3, "n")),
    "diagonal": (lambda x, y: x.diagonal_scatter(y, 1, 0, 2), (1, "n", 2), ("n", 1)),
    "diagonal of a row": (lambda x, y: x.diagonal_scatter(y, 0, 0, 2), (1, 2, 3), (2, 1)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_written_over_is_not_read(name: str) -> None:
    function, shape, written = WHOLE[name]
    args = (TensorSpec(shape), TensorSpec(written, seed=1))
    compiled = check_model(lambda: Writes(function), args, sizes={"n": (1, 4, 9)}, build=True)
    (segment,) = compiled.partitioned.engine_segments
    assert [port.name for port in segment.inputs] == ["y"]


@pytest.mark.parametrize("name", PART)
def test_what_is_written_in_part_is_read(name: str) -> None:
    function, shape, written = PART[name]
    args = (TensorSpec(shape), TensorSpec(written, seed=1))
    compiled = check_model(lambda: Writes(function), args, sizes={"n": (1, 4, 9)} if "n" in (*shape, *written) else {})
    (segment,) = compiled.partitioned.engine_segments
    assert {port.name for port in segment.inputs} == {"x", "y"}
