"""What ``benchmarks.zoo`` compiles: architectures of public libraries, small, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from attrs import evolve, field, frozen
from torch.utils._pytree import tree_map

from examples.models import Case
from pipeline import Constant

Made: TypeAlias = tuple[torch.nn.Module, dict[str, Any], dict[str, Any] | None]
"""A module, example inputs by keyword, which may be constants, and torch.export's dynamic shapes by keyword (dims are
``Dim`` s with names)."""

SIZES = ({"batch": 1}, {"batch": 3, "sequence": 9, "target": 5}, {"batch": 4, "sequence": 32, "target": 16})
"""What is tried beside the sizes of the example; names that an architecture has no dim of say nothing."""


@frozen
class Architecture:
    """An architecture: its name in the library it is from, what it does, and what makes a small one.

    task: in one or two words (``"decoder"``, ``"detection"``), for the table. sizes: the sizes of the dynamic dims to
    try, by name. dtypes: what to compile it in, by torch's names. library: that which it is from. decisions: the
    setting that it needs.
    """

    name: str
    task: str
    make: Callable[[], Made] = field(repr=False)
    sizes: tuple[dict[str, int], ...] = SIZES
    dtypes: tuple[str, ...] = ("float32",)
    library: str = "transformers"
    decisions: str = "refuse"

    def case(self, dtype: torch.dtype = torch.float32) -> Case:
        """The module in eval mode with its example, the same every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, kwargs, dims = self.make()
        constants = frozenset(name for name, value in kwargs.items() if isinstance(value, Constant))
        kwargs = {name: value.value if name in constants else value for name, value in kwargs.items()}
        kwargs = tree_map(lambda value: _cast(value, dtype), kwargs)
        return Case(self.name, model.eval().to(dtype), kwargs, dims, constants, self.decisions)


def by_example(architecture: Architecture) -> Architecture:
    """An architecture whose branches data decides: those of its example are compiled, and each call is checked."""
    return evolve(architecture, decisions="example")


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def lively(model: torch.nn.Module) -> torch.nn.Module:
    """The model with weights under which what goes in decides what comes out: those that libraries begin with are so
    small that deep networks give next to nothing, or their last bias."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dim() > 1:
            parameter.data.normal_(std=max(parameter[:1].numel(), 1) ** -0.5)
        elif parameter.is_floating_point():
            parameter.data.uniform_(-0.1, 0.1).add_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(-0.1, 0.1).add_(1.0 if name.endswith("var") else 0.0)
    return model
