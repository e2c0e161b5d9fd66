"""Programs whose reductions would have sums of few elements in their expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

Function: TypeAlias = Callable[[Tensor], Any]
ROWS: Final = (5, 4, 20)
"""Four are few; the others are not."""
POINTS: Final = (2, 20, 3)


def _pairs(t: Tensor) -> Tensor:
    return t[..., None] - t[..., None, :]


def _turned(x: Tensor) -> Tensor:
    """Points, turned and moved, as shape networks align them."""
    return x @ torch.linspace(-1, 1, 9, dtype=x.dtype, device=x.device).reshape(3, 3)


BROADCAST: Final[dict[str, tuple[Function, tuple[int, ...]]]] = {
    "pairs of sums": (lambda x: _pairs(x.sum(-1)).abs().sum(-1), POINTS),
    "pairs of means": (lambda x: _pairs(x.mean(-1)).softmax(-1), POINTS),
    "pairs of products": (lambda x: _pairs(x.prod(-1)).amax(1), POINTS),
    "pairs of vectors": (lambda x: _pairs(_turned(x)[..., 0] * 2).argmax(-1), POINTS),
    "pairs that are compared": (lambda x: (_pairs(x.sum(-1)) > 0).sum((-2, -1)), POINTS),
    "distances": (lambda x: (lambda s: (s[..., None] + s[..., None, :]).amin(-1))((x**2).sum(-1)), POINTS),
    "with others between": (lambda x: (_pairs(x.sum(-1)) * x[:, :, :1].cos()).mean(1), POINTS),
    "joined": (lambda x: torch.cat([_pairs(x.sum(-1)), x], -1).amax(-1), POINTS),
}
"""A sum, broadcast along two dims."""
BESIDE: Final[dict[str, tuple[Function, tuple[int, ...]]]] = {
    "mean of probabilities": (lambda x: x.softmax(1).mean(2), ROWS),
    "mean over points": (lambda x: x.softmax(-1).mean(1), POINTS),
    "norm of probabilities": (lambda x: functional.layer_norm(x.softmax(1), (20,)), ROWS),
    "weighted": (lambda x: (x.softmax(1) * x).sum(-1), ROWS),
    "logarithms": (lambda x: x.log_softmax(1).amin(-1), ROWS),
    "logarithms of a vector": (lambda x: (x[0, 0].log_softmax(0) * x).sum(-1), POINTS),
    "in turn": (lambda x: x.softmax(1).softmax(2), ROWS),
    "most probable": (lambda x: x.softmax(-1).argmax(1), POINTS),
    "norms": (lambda x: functional.layer_norm(x, (3,)).amax(1), POINTS),
    "norms of channels": (lambda x: functional.layer_norm(x.mT, (4,)).amax(1), ROWS),
    "norms of squares": (lambda x: functional.rms_norm(x, (3,)).amax(1), POINTS),
    "norms of instances": (lambda x: functional.instance_norm(x).amax(1), (3, 8, 4)),
    "norms of groups": (lambda x: functional.group_norm(x[:, :, :2], 2).amax(1), ROWS),
    "a residual": (lambda x: (x + _turned(x)).amax(1), POINTS),
    "a residual of the same, twice": (lambda x: (_turned(x.exp()) + x.exp()).amax(1), POINTS),
    "a residual in batches": (lambda x: (x @ x.mT[:, :, :3] + x).sum(1), POINTS),
}
"""A sum beside the elements that it is of."""
FORMS: Final = {**BROADCAST, **BESIDE}


class Written(nn.Module):
    """One of the programs."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return FORMS[self.form][0](x)


def example(form: str) -> Tensor:
    """An input of a program."""
    torch.manual_seed(0)
    return torch.randn(FORMS[form][1])


BATCH: Final = ({0: Dim("batch", min=2, max=9)},)
