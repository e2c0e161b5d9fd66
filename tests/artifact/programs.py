"""Programs that are kept and loaded again: what runs in PyTorch, is written to, branches, and has sizes of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from attrs import field, frozen
from torch import nn
from torch.export import Dim

BATCH = Dim("batch", min=1, max=8)


@frozen
class Case:
    """A module, its inputs, its dynamic dims, and settings."""

    model: nn.Module = field(repr=False)
    args: tuple[Any, ...] = field(repr=False)
    dynamic_shapes: Any = field(repr=False, default=None)
    settings: dict[str, Any] = field(factory=dict)


class Function(nn.Module):
    """A function as a module, with a linear layer that it may use."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(8, 8)

    def forward(self, *args: Any) -> Any:
        """What the function gives."""
        return self.function(self, *args)


class Counter(nn.Module):
    """A buffer that counts calls, and one that keeps the last input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(2, 8))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[2, 8] -> [2, 8], []"""
        self.count += 1
        before = self.last.clone()
        self.last.copy_(x)
        return self.linear(x) + before, self.count


class Pair(NamedTuple):
    """A named tuple."""

    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Result:
    """A dataclass, one of whose fields is None."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None


torch.export.register_dataclass(Result, serialized_type_name="tests.artifact.Result")


def _branches(self: Function, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda v: self.linear(v).sin(), lambda v: v * 2, (x,))


def _loop(self: Function, x: torch.Tensor) -> Any:
    def more(i: torch.Tensor, v: torch.Tensor) -> Any:
        return i < 3

    def step(i: torch.Tensor, v: torch.Tensor) -> Any:
        return i + 1, self.linear(v)

    return torch._higher_order_ops.while_loop(more, step, (torch.tensor(0), x))[1]


def _written(self: Function, x: torch.Tensor, cache: torch.Tensor) -> Any:
    cache.add_(x)
    return self.linear(cache), cache


def cases() -> dict[str, Case]:
    """The cases by name."""
    torch.manual_seed(0)
    x = torch.randn(2, 8)
    executed = {"torch_executed_ops": (torch.ops.aten.sin.default, "aten::cumsum"), "min_block_size": 1}
    batch, stripe = ({0: BATCH},), torch.randn(3, 4)
    made: dict[str, Case] = {
        "whole": Case(Function(lambda m, x: torch.softmax(m.linear(x), -1)), (x,)),
        "dynamic": Case(Function(lambda m, x: {"y": m.linear(x), "n": x.shape[0] * 2 + 1}), (x,), {"args": batch}),
        "two of a size": Case(
            Function(lambda m, x, y: m.linear(torch.cat([x, y], 1)[:, :8])), (x, x[:, :3]), {"args": batch * 2}
        ),
        "fallback": Case(Function(lambda m, x: (m.linear(m.linear(x).sin()), x.cumsum(0))), (x,), None, executed),
        "mutation": Case(Counter(), (x,)),
        "written input": Case(Function(_written), (x, torch.zeros(2, 8))),
        "branches": Case(Function(_branches), (x,)),
        "loop": Case(Function(_loop), (x,)),
        "data": Case(Function(lambda m, x: m.linear(x[x.sum(1) > 0])), (x,)),
        "aliases": Case(Function(lambda m, x: [x, m.linear.weight, 3, None, "a", x.view(-1)]), (x,)),
        "named tuple": Case(Function(lambda m, x: Pair(m.linear(x), x + 1)), (x,)),
        "dataclass": Case(Function(lambda m, x: Result(m.linear(x))), (x,)),
        "relation": Case(
            Function(lambda m, x: x.view(2, x.shape[0] // 2, 8) + 1), (torch.randn(4, 8),), {"args": ({0: BATCH},)}
        ),
        "host": Case(Function(lambda m, x: x[: int(x.shape[0] ** 0.5)] * 2), (torch.randn(4, 8),), {"args": batch}),
        "nested": Case(Function(lambda m, x: m.linear(x["a"][0]) + x["b"]), ({"a": (x,), "b": x},)),
        "dtypes": Case(Function(lambda m, x: (x.half(), x.to(torch.complex64), x > 0, x.double())), (x,)),
    }
    made["stripe"] = Case(Function(lambda m, s: s.t().contiguous() @ s), (stripe,))
    return {name: Case(c.model.eval(), c.args, c.dynamic_shapes, c.settings) for name, c in made.items()}
