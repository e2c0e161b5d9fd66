"""A row of the zoo: a small model as users write it, and its inputs with named sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import nn

from pipeline.program import Range
from pipeline.testing import TensorSpec

RANGES = {"n": Range(1, 3, 5), "s": Range(2, 6, 9), "h": Range(5, 8, 12), "w": Range(5, 7, 12)}
"""The sizes by their names: a batch, a sequence, a height and a width."""


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """What the function gives."""
        return self.function(*args)


@frozen
class Row:
    """``model`` makes the module."""

    name: str
    model: Callable[[], nn.Module] = field(repr=False)
    inputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, Range] = field(factory=lambda: RANGES)

    @property
    def names(self) -> list[str]:
        """The names of its sizes."""
        return sorted({name for spec in self.inputs for name in spec.size_names})

    @property
    def sizes_to_try(self) -> list[dict[str, int]]:
        """The sizes at which it is run: opt, the least, the most."""
        ends = [{n: getattr(self.ranges[n], end) for n in self.names} for end in ("opt", "min", "max")]
        return ends if self.names else ends[:1]

    def tensors(self, sizes: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
        """Its inputs for these sizes; those of equal specs differ."""
        return tuple(evolve(spec, seed=101 * i).create_tensor(sizes) for i, spec in enumerate(self.inputs))

    @property
    def dynamic_shapes(self) -> tuple[dict[int, torch.export.Dim], ...]:
        """torch.export's, for the named sizes."""
        dims = {n: torch.export.Dim(n, min=self.ranges[n].min, max=self.ranges[n].max) for n in self.names}
        return tuple({i: dims[d] for i, d in enumerate(spec.shape) if isinstance(d, str)} for spec in self.inputs)


def t(*shape: Any, values: Any = "normal", dtype: torch.dtype = torch.float32) -> TensorSpec:
    """An input of floats."""
    return TensorSpec(shape, dtype, values)


def i(*shape: Any, below: int | None = None, values: Any = "normal", dtype: torch.dtype = torch.int64) -> TensorSpec:
    """An input of integers; ``below``: of indices."""
    return TensorSpec(shape, dtype, values if below is None else ("below", below))


def b(*shape: Any) -> TensorSpec:
    """An input of bools."""
    return TensorSpec(shape, torch.bool)


def f(name: str, function: Callable[..., Any], *inputs: TensorSpec, **more: Any) -> Row:
    """The row of a function."""
    return Row(name, lambda: Function(function), inputs, **more)


def m(name: str, model: Callable[[], nn.Module], *inputs: TensorSpec, **more: Any) -> Row:
    """The row of a module, given by what makes it."""
    return Row(name, model, inputs, **more)
