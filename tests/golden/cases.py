"""Small programs whose printed networks are kept: what a change of a converter does to networks shows in review."""

from __future__ import annotations

from typing import Any

import torch
from attrs import field, frozen
from torch import nn
from torch.export import Dim

BATCH = Dim("batch", min=1, max=8)
LENGTH = Dim("length", min=2, max=16)


@frozen
class Golden:
    """A module, its inputs and its dynamic dims."""

    model: nn.Module = field(repr=False)
    args: tuple[Any, ...] = field(repr=False)
    dynamic_shapes: Any = field(repr=False, default=None)


class Attention(nn.Module):
    """Self-attention as models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, 64] -> [N, S, 64]"""
        n, s, c = x.shape
        q, k, v = self.qkv(x).view(n, s, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, s, c))


class Embedded(nn.Module):
    """Tokens to logits, with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[N, S] -> [N, S, 20]"""
        return self.norm(self.embed(ids)) @ self.embed.weight.t()


def cases() -> dict[str, Golden]:
    """The cases by name; weights do not print, so their values do not matter."""
    conv = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Softmax(-1))
    image, rows = torch.randn(2, 3, 8, 8), torch.randn(2, 8)
    sequence = ({0: BATCH, 1: LENGTH},)
    return {
        "attention_fp16": Golden(Attention().half(), (torch.randn(2, 5, 64).half(),), sequence),
        "attention_fp32": Golden(Attention(), (torch.randn(2, 5, 64),), sequence),
        "conv_fp16": Golden(conv.half(), (image.half(),), ({0: BATCH},)),
        "embedding": Golden(Embedded(), (torch.randint(0, 20, (2, 5)),), sequence),
        "mlp": Golden(mlp, (rows,), ({0: BATCH},)),
        "upsample": Golden(nn.Upsample(scale_factor=2, mode="bilinear"), (image,), ({0: BATCH},)),
    }
