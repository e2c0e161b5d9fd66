"""Programs that broadcast what the kernel of a reduction keeps of each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch.export import Dim
from torch.nn import functional

Sizes: TypeAlias = tuple[int, ...]
OUTER: Final = ((4, 1, 8), (4, 5, 8))
LONGER: Final = ((4, 2, 8), (4, 2, 20))


def _shifted(x: torch.Tensor, y: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """A reduction of what another one shifted, both for other elements."""
    return y * shift + (x - shift).exp().sum(-1, keepdim=True)


FORMS: Final[dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tuple[Sizes, Sizes]]]] = {
    "softmax": (lambda x, y: x.softmax(-1) * y, OUTER),
    "softmax in front": (lambda x, y: x.softmax(-1) + y, ((1, 7, 64), (4, 7, 64))),
    "softmax of a row": (lambda x, y: x.softmax(-1) * y, ((1, 8), (4, 8))),
    "softmax of many": (lambda x, y: x.softmax(-1) * y, ((4, 1, 1000), (4, 5, 1000))),
    "softmax in a condition": (lambda x, y: torch.where(y > 0, x.softmax(-1), y), OUTER),
    "softmax in a view": (lambda x, y: x.softmax(-1).reshape(-1, 8).reshape(-1, 1, 8) * y, OUTER),
    "softmax and more": (lambda x, y: torch.relu(x.softmax(-1) * 2 + 1) * y, OUTER),
    "log_softmax of one": (lambda x, y: x.log_softmax(-1) + y, ((4, 1), (4, 5))),
    "layer_norm": (lambda x, y: functional.layer_norm(x, (8,)) + y, OUTER),
    "layer_norm of two dims": (lambda x, y: functional.layer_norm(x, (3, 1)) * y, ((4, 3, 1), (4, 3, 5))),
    "rms_norm": (lambda x, y: functional.rms_norm(x, (8,), eps=1e-6) * y, OUTER),
    "deviation": (lambda x, y: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1) * y, OUTER),
    "largest": (lambda x, y: (x - x.amax(-1, keepdim=True)).exp() * y, ((4, 1), (4, 5))),
    "before the reduction": (lambda x, y: (y - x.sigmoid()) / x.sigmoid().std(-1, keepdim=True), OUTER),
    "behind what is reduced": (lambda x, y: y * (x.exp() + 1) / x.exp().amax(-1, keepdim=True), OUTER),
    "a reduction of a reduction": (
        lambda x, y: (y - x.sum(1)) / (x.sum(1).std(-1, keepdim=True) + 1),
        ((1, 2, 8), (4, 8)),
    ),
    "a triangle": (lambda x, y: x.softmax(-1).tril() * y, ((1, 8, 8), (5, 8, 8))),
    "a pool": (
        lambda x, y: x.sigmoid() / functional.adaptive_avg_pool2d(x.sigmoid(), 1) * y,
        ((1, 8, 4, 4), (4, 8, 4, 4)),
    ),
    "padding of nothing": (lambda x, y: functional.pad(x.softmax(-1), (0, 0)) * y, OUTER),
    "added to a product": (lambda x, y: torch.addmm(x.softmax(-1), y[:, :1], y[:1]), ((8,), (5, 8))),
    "bias of a product": (lambda x, y: functional.linear(y[:, :1], y.T[:, :1], x.softmax(-1)), ((8,), (5, 8))),
    "product of one": (lambda x, y: x.softmax(-1) @ y, ((2, 4, 1), (2, 1, 5))),
    "norm and product of one": (lambda x, y: functional.rms_norm(x, (1,), eps=1e-6) @ y, ((4, 1), (1, 5))),
    "vector and product of one": (lambda x, y: functional.rms_norm(x, (1,), eps=1e-6) @ y, ((1,), (1, 5))),
    "logsumexp": (lambda x, y: y - x.logsumexp(-1, keepdim=True), LONGER),
    "logsumexp and more": (lambda x, y: y - torch.relu(x.logsumexp(-1, keepdim=True) * 2), LONGER),
    "shifted by the largest": (lambda x, y: _shifted(x, y, x.amax(-1, keepdim=True)), LONGER),
    "shifted by a mean": (lambda x, y: _shifted(x, y, x.mean(-1, keepdim=True)), LONGER),
    "shifted by a sum and more": (lambda x, y: _shifted(x, y, torch.tanh(x.sum(-1, keepdim=True))), LONGER),
}
RIGHT: Final = {
    "logsumexp of the same": (lambda x, y: y - x.logsumexp(-1, keepdim=True), ((4, 5, 8), (4, 5, 8))),
    "shifted by the largest of the same": (
        lambda x, y: _shifted(x, y, x.amax(-1, keepdim=True)),
        ((4, 5, 8), (4, 5, 8)),
    ),
    "same size": (lambda x, y: x.softmax(-1) * y, ((4, 5, 8), (4, 5, 8))),
    "sum": (lambda x, y: y / x.sigmoid().sum(-1, keepdim=True), OUTER),
    "nothing reduced": (lambda x, y: (x.exp() + 1) * y, OUTER),
}
"""Programs that keep their form: there is nothing that a reduction keeps, or it is not broadcast."""


class Broadcast(torch.nn.Module):
    """One of the programs."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        function, _ = {**FORMS, **RIGHT}[self.form]
        return function(x, y)


def inputs(form: str, dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of a program."""
    torch.manual_seed(0)
    _, (first, second) = {**FORMS, **RIGHT}[form]
    return torch.randn(first).to(device, dtype), torch.randn(second).to(device, dtype)


def dynamic(form: str) -> tuple[dict[int, Any], dict[int, Any]] | None:
    """Sizes that vary: the first of both, and a size that is broadcast to; None if a form has none."""
    _, (first, second) = {**FORMS, **RIGHT}[form]
    if len(first) != 3 or first[0] != second[0]:
        return None
    batch = Dim("batch", min=2, max=8)
    return ({0: batch}, {0: batch, **({1: Dim("rows", min=2, max=40)} if first[1] == 1 else {})})
