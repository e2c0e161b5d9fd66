"""Small networks whose kernels are those of models that TensorRT-RTX 1.4 has wrong at some sizes, and calls of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.export import Dim


class First(nn.Module):
    """The first patch that has three values or more, as TimesFM looks for it: the greatest of equals."""

    def forward(self, values: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """[N, 32], [N, 32] -> [N, 8]"""
        there = (1 - padding.unflatten(1, (-1, 8))).sum(2) >= 3
        place = torch.argmax(there.to(torch.int32), 1)
        return values.unflatten(1, (-1, 8))[torch.arange(values.shape[0], device=values.device), place]

    @staticmethod
    def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Nothing is padded, or the first patches are."""
        padding = torch.zeros(batch, 32, dtype=torch.int64)
        padding[batch // 2, : 8 * (length % 4)] = 1
        return torch.randn(batch, 32), padding

    shapes = ({0: Dim("batch", max=4)},) * 2


class Biased(nn.Module):
    """Attentions with a bias of each layer's own for how far apart positions are, and a mask of keys, as UMT5's."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tables = nn.ModuleList(nn.Embedding(64, heads) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joint = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N, S, width], [N, S] -> [N, S, width]"""
        places = torch.arange(x.shape[1], device=x.device)
        apart = (places[None] - places[:, None]).clamp(-31, 31) + 31
        for table, norm, joint, out in zip(self.tables, self.norms, self.joint, self.out, strict=True):
            bias = table(apart).permute(2, 0, 1)[None]
            bias = torch.where(mask[:, None, None, :] > 0, bias, torch.finfo(x.dtype).min)
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in joint(norm(x)).chunk(3, -1))
            attended = nn.functional.scaled_dot_product_attention(q, k, v, bias, scale=1.0)
            x = x + out(attended.transpose(1, 2).flatten(2))
        return x

    @staticmethod
    def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The last row's last third is padding."""
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, length - length // 3 :] = 0
        return torch.randn(batch, length, 64), mask

    shapes = ({0: Dim("batch", max=4), 1: Dim("length", min=2, max=32)},) * 2


MODELS: dict[str, type[First | Biased]] = {"the first of equals": First, "a bias of each layer": Biased}
SIZES = ((2, 12), (3, 9), (1, 2), (3, 5), (4, 32), (2, 12), (3, 31))
"""Of calls in turn; the first is what engines are tuned for."""


def calls(name: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """The inputs of one call after the other."""
    torch.manual_seed(1)
    return (MODELS[name].inputs(*sizes) for sizes in SIZES)
