"""A model with control flow, and the flows that engines have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan

X: Final = torch.linspace(-1, 2, 24).reshape(6, 4)
DIMS: Final = ({0: torch.export.Dim("n", min=1, max=9)},)
Function: TypeAlias = Callable[["Flow", Tensor], Any]


class Flow(nn.Module):
    """Control flow between two products, over weights of its own."""

    def __init__(self, flow: Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.flow = flow
        self.first, self.inner, self.other = (nn.Linear(4, 4) for _ in range(3))
        self.conv, self.norm = nn.Conv1d(1, 4, 3, padding=1), nn.LayerNorm(4)
        self.table = nn.Embedding(10, 4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: Tensor) -> Any:
        """[N, 4] -> what the flow returns"""
        return self.flow(self, self.first(x) * 2)


def chosen(m: Flow, y: Tensor) -> Tensor:
    return torch.cond(y.sum() > 0, lambda a: torch.relu(m.inner(a)), lambda a: m.other(a) - m.shift, (y,))


def nested(m: Flow, y: Tensor) -> Tensor:
    def inner(a: Tensor) -> Tensor:
        return torch.cond(a.mean() > 0.5, lambda b: m.inner(b) * b.shape[0], lambda b: b * 2, (a,))

    return torch.cond(y.sum() > 0, inner, lambda a: m.other(a) + torch.ones_like(a), (y,))


def several(m: Flow, y: Tensor) -> Any:
    return torch.cond((y.sum() > 0).reshape(1), lambda a: (a + 1, a.sum()), lambda a: (m.inner(a), a.amax()), (y,))


def undefined(m: Flow, y: Tensor) -> Tensor:
    """What is not chosen is not a number."""
    return torch.cond(y.amin() > 0, lambda a: a.log() / a.sqrt(), lambda a: a * torch.inf, (y,))


def whole(m: Flow, y: Tensor) -> Tensor:
    n = y.to(torch.int64)
    return torch.cond((n > 0).any(), lambda a: a * 3 // 2, lambda a: a % 3, (n,))


def rows(m: Flow, y: Tensor) -> Tensor:
    return map_over(lambda row: torch.relu(m.norm(m.inner(row))).cumsum(0), y)  # type: ignore[no-any-return]


def pairs(m: Flow, y: Tensor) -> Any:
    """Of two sequences, with what all rows share, of rank 0 or without rows."""
    return map_over(lambda both: (both[0].dot(both[1]), both[0].sum() - both[1]), (y, y.flip(1)))  # type: ignore[call-overload]


def rows_that_choose(m: Flow, y: Tensor) -> Tensor:
    def each(row: Tensor) -> Tensor:
        return torch.cond(row.sum() > 0, lambda a: m.inner(a), lambda a: a - 1, (row,))

    return map_over(each, y)  # type: ignore[no-any-return]


def convolved(m: Flow, y: Tensor) -> Tensor:
    return map_over(lambda row: m.conv(row[None, None])[0, 0], y)  # type: ignore[no-any-return]


def recurrence(m: Flow, y: Tensor) -> Any:
    return scan(lambda h, row: ((m.inner(row) + h).tanh(), h * 2), m.shift.clone(), y)


def backwards(m: Flow, y: Tensor) -> Any:
    """Along the last dim, from its end, of one result and no other."""
    return scan(lambda h, part: (h * 0.5 + part, h * 1), y[:, 0] * 0, y, dim=1, reverse=True)


def steps_that_choose(m: Flow, y: Tensor) -> Any:
    def step(h: Tensor, row: Tensor) -> Any:
        return torch.cond(h.sum() > 0, lambda a, b: a - b, lambda a, b: a + m.other(b), (h, row)), h.mean()

    return scan(step, m.shift * 0, y)


def _written(a: Tensor, b: Tensor) -> Tensor:
    """A part of a copy is written, through a view of it, and then the copy."""
    copy = a.clone()
    copy[..., 1:].mul_(2)
    copy[..., 0] += b[..., 1]
    return copy.relu_()


def writes(m: Flow, y: Tensor) -> Tensor:
    return torch.cond(y.sum() > 0, lambda a: _written(m.inner(a), a), lambda a: (a * 2).add_(1), (y,))


def rows_that_write(m: Flow, y: Tensor) -> Tensor:
    return map_over(lambda row: _written(row, m.shift), y)  # type: ignore[no-any-return]


def steps_that_write(m: Flow, y: Tensor) -> Any:
    return scan(lambda h, row: (_written(h, row), h * 2), m.shift.clone(), y)


def repeated(m: Flow, y: Tensor) -> Tensor:
    return while_loop(lambda a: a.sum() < 100, lambda a: (m.inner(a).abs() + a.abs() + 1,), (y,))[0]  # type: ignore[no-any-return]


ANY_SIZE: Final[dict[str, Function]] = {
    f.__name__: f
    for f in (chosen, nested, several, undefined, whole, rows, pairs, rows_that_choose, rows_that_write, backwards)
}
ONE_SIZE: Final[dict[str, Function]] = {
    f.__name__: f for f in (recurrence, steps_that_choose, steps_that_write, writes, convolved)
}
