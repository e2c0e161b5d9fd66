"""Define ``TensorType``, which replaces fake tensors in a loaded program's graph, and read the bytes of tensors."""

from __future__ import annotations

import sympy
import torch
from attrs import frozen


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's elements in order, as uint8[nbytes]; a view if the tensor is contiguous."""
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)  # the stride of one element may be 0


@frozen
class TensorType:
    """A tensor's dtype, its sizes (ints, or expressions over the program's symbols), and its device type."""

    dtype: torch.dtype
    shape: tuple[int | sympy.Expr, ...]
    kind: str = "cpu"

    @property
    def device(self) -> torch.device:
        """The type of the tensor's device at capture, as a device without an index."""
        return torch.device(self.kind)
