"""Operators of users' own, which PyTorch knows nothing of but their fakes."""

from __future__ import annotations

import torch


@torch.library.custom_op("users::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    """The elements above 0, of at most 36. It does not say that its data make a size."""
    return x[x > 0]


@positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(min=0, max=36))
