"""Types and helpers for the functions that compute layer kinds."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from pipeline.errors import ExecutionError
from pipeline.network.description import Layer

HALVES = (torch.float16, torch.bfloat16)
Maybe: TypeAlias = torch.Tensor | None
Outputs: TypeAlias = tuple[torch.Tensor, ...]
Kind: TypeAlias = Callable[[Layer, Sequence[Maybe], Mapping[str, torch.Tensor]], Outputs]
"""The type of functions that compute one kind of layer: from a layer, its inputs and its weights by role to outputs."""


class LayerError(ExecutionError):
    """A layer breaks a rule of TensorRT, or the CPU reference does not support it; the message names the layer."""

    advice = "if the original model takes these inputs, name the layer's operator in torch_executed_ops"
    named = False


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Convert half-precision tensors to float32, the precision in which a good kernel accumulates."""
    return tensor.float() if tensor.dtype in HALVES else tensor


def to_integers(tensor: torch.Tensor) -> list[int]:
    """Return the elements of a shape tensor as Python integers."""
    return [int(value) for value in tensor.reshape(-1).tolist()]


def normalize_axis(axis: int, rank: int) -> int:
    """Return the axis as a non-negative number."""
    return axis + rank if axis < 0 else axis


def reshape_along_axis(vector: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    """Reshape a vector so that it extends along one axis of a tensor of this rank, and broadcasts along the others."""
    return vector.reshape([-1 if position == axis else 1 for position in range(rank)])


def replace_nan(x: torch.Tensor, value: float) -> torch.Tensor:
    """Replace NaN by a value that a maximum or minimum never selects, as TensorRT-RTX 1.4 does on an H200."""
    return torch.where(x.isnan(), value, x) if x.is_floating_point() else x
