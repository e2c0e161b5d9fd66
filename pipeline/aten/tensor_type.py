"""Define ``TensorType``: dtype and sizes of a tensor in a loaded program's graph, in place of a fake tensor."""

from __future__ import annotations

import sympy
import torch
from attrs import frozen


@frozen
class TensorType:
    """A tensor's dtype, its sizes (ints, and expressions over the program's symbols), and the type of its device."""

    dtype: torch.dtype
    shape: tuple[int | sympy.Expr, ...]
    kind: str = "cpu"

    @property
    def device(self) -> torch.device:
        """The device it was on when the model was captured, without its index."""
        return torch.device(self.kind)
