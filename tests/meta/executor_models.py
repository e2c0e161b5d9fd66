"""Small models that together have most of TensorRT's layer kinds, for faults that are planted in the executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from attrs import frozen
from torch import nn
from torch.export import Dim

import pipeline


class Images(nn.Module):
    """Convolutions, poolings, padding and resizing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.up, self.norm = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, 8, 8] -> [N, 4, 8, 8]"""
        a = F.leaky_relu(self.first(x), 0.2)
        b = F.avg_pool2d(a, 2) + F.max_pool2d(a, 3, 2, 1)
        c = F.elu(self.second(F.pad(b, (1, 1, 1, 1)))[:, :, 1:-1, 1:-1])
        up = self.norm(self.up(c))
        return torch.cat([up[:, :2] - 0.5, F.interpolate(c, scale_factor=2.0, mode="bilinear")[:, ::4]], 1) / 2


class Tokens(nn.Module):
    """An embedding, attention spelt out, and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(17, 12), nn.LayerNorm(12)
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
        self.wide, self.narrow = nn.Linear(12, 24), nn.Linear(24, 12)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, L] identifiers and a mask -> [N, L, 12] and the number of tokens"""
        x = self.norm(self.table(ids))
        q, k, v = torch.tanh(self.query(x)), torch.sigmoid(self.key(x)), self.value(x)
        scores = (q * 3 - k.mean(1, keepdim=True)) @ k.transpose(1, 2)
        weights = torch.where(mask.bool()[:, None, :], scores.exp(), 0.0)
        y = (weights / (weights.sum(-1, keepdim=True) + 1)) @ v
        return x - self.narrow(F.gelu(self.wide(y))).softmax(-1), mask.sum(1)


class Choices(nn.Module):
    """What selects, sorts, scatters and accumulates."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        """[N, 10] and indices [N, 4] -> several results"""
        a = x.gather(1, index) * 2
        values, _ = (x.sin() + 2).sqrt().topk(3, dim=1)
        total = x.abs().cumsum(1) ** 1.5
        put = torch.zeros_like(x).scatter(1, index[:, :1], a[:, :1])
        hard = torch.where(put > 0.1, total.clamp(0.5, 2.0), put.maximum(x))
        prod = hard.flip(1).amax(1, keepdim=True) - values.prod(1, keepdim=True)
        return {
            "prod": prod,
            "logs": torch.log1p(total).unsqueeze(1).expand(-1, 2, -1),
            "rest": torch.floor(x * 3) - x.round(),
        }


@frozen
class Toy:
    """A model and what it is called with."""

    make: Callable[[], nn.Module]
    inputs: Mapping[str, torch.Tensor]
    dims: Mapping[str, dict[int, Dim]]


def toys() -> dict[str, Toy]:
    batch, length = Dim("batch", min=1, max=5), Dim("length", min=2, max=9)
    generator = torch.Generator().manual_seed(0)
    images = {"x": torch.randn(2, 3, 8, 8, generator=generator)}
    ids = torch.randint(0, 17, (2, 6), generator=generator)
    tokens = {"ids": ids, "mask": (ids > 2).long()}
    choices = {
        "x": torch.randn(3, 10, generator=generator),
        "index": torch.rand(3, 10, generator=generator).argsort(1)[:, :4],
    }
    return {
        "images": Toy(Images, images, {"x": {0: batch}}),
        "tokens": Toy(Tokens, tokens, {"ids": {0: batch, 1: length}, "mask": {0: batch, 1: length}}),
        "choices": Toy(Choices, choices, {"x": {0: batch}, "index": {0: batch}}),
    }


@cache
def compiled(name: str) -> pipeline.Compiled:
    """A toy without engines, for the reference executor."""
    toy = toys()[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = toy.make().eval()
    made: pipeline.Compiled = pipeline.default().replace("build", pipeline.stages.unbuilt)(
        model, (), dict(toy.inputs), dict(toy.dims)
    )
    return made
