"""Attention as a module."""

from __future__ import annotations

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
