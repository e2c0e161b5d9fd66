"""Helpers for the functions of all layer kinds."""

import torch

from pipeline.runtime.reference.layer_types import Inputs, LayerError

HALVES = (torch.float16, torch.bfloat16)


def present(inputs: Inputs, count: int) -> tuple[torch.Tensor, ...]:
    """The first `count` inputs, none of which may be absent."""
    given = tuple(tensor for tensor in inputs[:count] if tensor is not None)
    if len(given) != count:
        raise LayerError(f"needs {count} inputs, has {len(given)}")
    return given


def optional(inputs: Inputs, index: int) -> torch.Tensor | None:
    """Input `index`, or None where it is absent."""
    return inputs[index] if index < len(inputs) else None


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Halves as float32, in which a good kernel accumulates; other dtypes unchanged."""
    return tensor.float() if tensor.dtype in HALVES else tensor


def integers(tensor: torch.Tensor) -> list[int]:
    """The values of a shape tensor."""
    return [int(value) for value in tensor.reshape(-1).tolist()]


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis."""
    return axis + rank if axis < 0 else axis


def along(vector: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    """A vector reshaped to lie along one axis of a tensor of that rank."""
    return vector.reshape([-1 if position == axis else 1 for position in range(rank)])


def without_nan(x: torch.Tensor, instead: float) -> torch.Tensor:
    """Replace NaN as choosing layers treat it on RTX 1.4 (measured on an H200): they choose it last."""
    return torch.where(x.isnan(), instead, x) if x.is_floating_point() else x
