"""Compute eager's type promotion for any number of values."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch


def promoted_dtype(values: Sequence[Any]) -> torch.dtype:
    """Return eager's promoted dtype of values: tensors take precedence over 0-d tensors, and these over numbers."""
    if len(values) == 2:
        return torch.result_type(*values)
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    numbers = [v for v in values if not isinstance(v, torch.Tensor)]
    kinds = [v for v in tensors if v.dim()], [v for v in tensors if not v.dim()], numbers
    result, *weaker = [_promote_one_kind(kind) for kind in kinds if kind]
    for other in weaker:
        result = torch.empty_like(result, dtype=torch.result_type(result, other))
    return torch.result_type(result, result)


def _promote_one_kind(values: list[Any]) -> Any:
    """Return a value with the promoted dtype of values of one kind: tensors with dims, 0-d tensors, or numbers."""
    if isinstance(values[0], torch.Tensor):
        return torch.empty_like(values[0], dtype=reduce(torch.promote_types, [v.dtype for v in values]))
    return max(values, key=lambda number: (bool, int, float, complex).index(type(number)))
