"""A U-Net for images: convolutions with group norm and SiLU, attention at the lowest resolution, skip connections."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, channels_in), nn.Conv2d(channels_in, channels, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.skip = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, channels_in, H, W] -> [N, channels, H, W]"""
        y = self.conv1(nn.functional.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(nn.functional.silu(self.norm2(y)))


class Attention(nn.Module):
    """Self-attention over the pixels."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(8, channels),
            nn.Conv2d(channels, 3 * channels, 1),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C, H, W] -> [N, C, H, W]"""
        n, c, h, w = x.shape
        q, k, v = (
            self.qkv(self.norm(x)).view(n, 3 * self.heads, c // self.heads, h * w).transpose(-1, -2).chunk(3, dim=1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(n, c, h, w))


class UNet(nn.Module):
    """Encoder, bottleneck and decoder; sides of the image are multiples of 2 ** len(multipliers)."""

    def __init__(self, channels: int = 32, multipliers: tuple[int, ...] = (1, 2, 4), in_channels: int = 3) -> None:
        super().__init__()
        widths = [channels * m for m in multipliers]
        self.stem = nn.Conv2d(in_channels, channels, 3, padding=1)
        self.down = nn.ModuleList(Block(a, b) for a, b in zip([channels, *widths], widths, strict=False))
        self.pool = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths)
        self.middle = nn.Sequential(
            Block(widths[-1], widths[-1]), Attention(widths[-1], 4), Block(widths[-1], widths[-1])
        )
        self.raise_ = nn.ModuleList(nn.ConvTranspose2d(w, w, 2, stride=2) for w in reversed(widths))
        outputs = [*reversed(widths[:-1]), channels]
        self.up = nn.ModuleList(Block(2 * w, o) for w, o in zip(reversed(widths), outputs, strict=True))
        self.head = nn.Conv2d(channels, in_channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_channels, H, W] -> [N, in_channels, H, W]"""
        x = self.stem(x)
        skips = []
        for block, pool in zip(self.down, self.pool, strict=True):
            x = block(x)
            skips.append(x)
            x = pool(x)
        x = self.middle(x)
        for raised, block in zip(self.raise_, self.up, strict=True):
            x = block(torch.cat([raised(x), skips.pop()], dim=1))
        return self.head(x)
