"""Attention as a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Attend(nn.Module):
    """PyTorch's own; a mask comes last."""

    def __init__(self, causal: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.causal, self.scale = causal, scale

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None) -> torch.Tensor:
        """[N, H, S, D], [N, H, T, D] twice -> [N, H, S, D]"""
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal, scale=self.scale)


FORMS = ("attention", "grouped", "masked", "spelled out", "MultiheadAttention", "its weights too")
"""Of an attention with one query."""


class Pooled(nn.Module):
    """Tokens that attend to each other, between products; then one that attends to them all, in one of `FORMS`."""

    def __init__(self, form: str, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.form, self.heads = form, heads
        self.first, self.last = nn.MultiheadAttention(width, heads, batch_first=True), nn.LayerNorm(width)
        self.norm, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)
        kept = width // 2 if form == "grouped" else width
        self.q, self.k, self.v, self.o = (nn.Linear(width, n) for n in (width, kept, kept, width))
        self.pool = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        """[N, S, width] -> [N, 1, width]"""
        y = self.norm(x)
        x = x + self.first(y, y, y, need_weights=False)[0]
        y = self.last(x + self.mlp(x))
        if self.form in ("MultiheadAttention", "its weights too"):
            result = self.pool(y[:, :1], y, y)
            return result if self.form == "its weights too" else result[0]
        return self.o(self.attend(self.q(y[:, :1]), self.k(y), self.v(y)).transpose(1, 2).flatten(2))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """[N, heads, 1, width / heads]"""
        q, k, v = (each.unflatten(-1, (-1, q.shape[-1] // self.heads)).transpose(1, 2) for each in (q, k, v))
        if self.form == "spelled out":
            return (q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v
        mask = torch.arange(k.shape[-2], device=k.device)[None] % 3 != 1 if self.form == "masked" else None
        grouped = self.form == "grouped"
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=grouped)


class Mixed(torch.nn.Module):
    """An attention of two heads over patches, and a linear layer whose result a convolution reads as an image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norms = torch.nn.Conv2d(3, 16, 4, 4), torch.nn.ModuleList(map(torch.nn.LayerNorm, [16] * 3))
        self.projections = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))
        self.wide, self.mixing = torch.nn.Linear(16, 64), torch.nn.Conv2d(64, 64, 3, padding=1, groups=64)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        patches = self.patches(image)
        x = self.norms[0](patches.flatten(2).transpose(1, 2))
        normed = self.norms[1](x)
        heads = (project(normed).unflatten(-1, (2, -1)).transpose(1, 2) for project in self.projections[:3])
        attended = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        x = x + self.projections[3](attended)
        wide = self.wide(self.norms[2](x)).transpose(1, 2)
        return self.mixing(wide.reshape(*wide.shape[:2], *patches.shape[2:]))


class Repeated(torch.nn.Module):
    """Two blocks as `Mixed` is one, with residuals: what is between convolutions is rows, turned round."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.patches, self.heads = nn.Conv2d(3, width, 3, 2, 1), heads
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "joint": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "norm": nn.LayerNorm(width),
                    "wide": nn.Linear(width, 2 * width),
                    "mixing": nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width),
                    "narrow": nn.Linear(2 * width, width),
                }
            )
            for _ in range(2)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, width, H / 2, W / 2]"""
        patches = self.patches(image)
        x = patches.flatten(2).transpose(1, 2)
        for block in self.blocks:
            parts = block["joint"](x).chunk(3, -1)
            heads = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            x = x + block["out"](nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
            wide = block["wide"](block["norm"](x)).transpose(1, 2)
            mixed = nn.functional.gelu(block["mixing"](wide.unflatten(2, patches.shape[2:])))
            x = x + block["narrow"](mixed.flatten(2).transpose(1, 2))
        return x.transpose(1, 2).unflatten(2, patches.shape[2:])


COMPARED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "second factor": lambda q, t: q @ t.transpose(-1, -2),
    "first factor": lambda q, t: t.transpose(-1, -2) @ q.transpose(-1, -2).flatten(1).view(-1, 8, 24),
    "einsum": lambda q, t: torch.einsum("bqc,btc->bqt", q, t),
    "with a summand": lambda q, t: torch.baddbmm(q[:, :, :8], q, t.transpose(1, 2)),
    "of several layers": lambda q, t: torch.stack([q, q * 2], 1) @ t.transpose(-1, -2)[:, None],
    "with themselves": lambda q, t: t @ t.transpose(-1, -2),
    "weights": lambda q, t: (q @ t.transpose(-1, -2)).softmax(-1),
    "result": lambda q, t: (q[:, :, :8] @ t).transpose(-1, -2),
}
"""Products of queries [N, 6, 32] and texts [N, 8, 32] in which a factor or the result is transposed."""


class Compared(torch.nn.Module):
    """Queries and texts in a product, as GroundingDINO compares them; the texts attend to each other before."""

    def __init__(self, form: str, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.form, self.heads = form, heads
        self.joint, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, q: torch.Tensor, texts: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N, 6, width], [N, 8, width], [N, 1, 8, 8] -> a form of `COMPARED`"""
        parts = self.joint(texts).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        weights = (query @ key.transpose(-1, -2) / 4 + mask).softmax(-1)
        attended = self.out((weights @ value).transpose(1, 2).flatten(2))
        return COMPARED[self.form](q, self.norm(texts + attended))

    @staticmethod
    def inputs(batch: int = 2) -> tuple[torch.Tensor, ...]:
        """Queries, texts, and a mask that is added."""
        return torch.randn(batch, 6, 32), torch.randn(batch, 8, 32), torch.randn(batch, 1, 8, 8)


ROUNDED = {
    "one key head": ((2, 4, 12, 16), (2, 1, 12, 16), (2, 1, 12, 16)),
    "wider values": ((2, 4, 12, 16), (2, 4, 12, 16), (2, 4, 12, 24)),
    "narrower values": ((2, 4, 12, 24), (2, 4, 12, 24), (2, 4, 12, 16)),
    "by hand": ((2, 4, 12, 16), (2, 4, 12, 16), (2, 4, 12, 16)),
}
"""Shapes of queries, keys and values, by form."""


class Rounded(nn.Module):
    """An attention whose result is a half, before a product: PyTorch's, or one that is computed in float32 by hand."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, width = form, ROUNDED[form][2][-1]
        self.attend, self.last = Attend(), nn.Linear(4 * width, 32)

    @staticmethod
    def inputs(form: str, dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, ...]:
        """Queries, keys and values."""
        torch.manual_seed(1)
        return tuple(torch.randn(shape).to(device, dtype) for shape in ROUNDED[form])

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """[N, 4, S, D], keys, values -> [N, S, 32]"""
        if self.form == "by hand":
            wide = q.dtype if q.dtype == torch.float64 else torch.float32
            scores = (q.to(wide) @ k.to(wide).transpose(-1, -2) * 0.25).softmax(-1)
            result = (scores @ v.to(wide)).to(q.dtype)
        else:
            result = self.attend(q, k, v)
        return self.last(result.transpose(1, 2).flatten(2))
