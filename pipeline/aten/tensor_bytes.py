"""Access the bytes of tensors."""

from __future__ import annotations

import torch


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's elements in order, uint8[nbytes]; a view if the tensor is contiguous."""
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)  # the stride of one element may be 0
