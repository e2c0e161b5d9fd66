"""Promote types by eager's rules, for any number of values."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch


def promoted(values: Sequence[Any]) -> torch.dtype:
    """Return the result dtype of an operator: tensors before 0-d tensors before Python numbers, and only across
    categories. Tensors may be on "meta"; only their rank counts."""
    if len(values) == 2:
        return torch.result_type(*values)
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    numbers = [v for v in values if not isinstance(v, torch.Tensor)]
    kinds = [v for v in tensors if v.dim()], [v for v in tensors if not v.dim()], numbers
    result, *weaker = [_of_one_kind(kind) for kind in kinds if kind]
    for other in weaker:
        result = torch.empty_like(result, dtype=torch.result_type(result, other))
    return torch.result_type(result, result)


def _of_one_kind(values: list[Any]) -> Any:
    """Return a value with the common type of tensors with dims, of 0-d tensors, or of numbers."""
    if isinstance(values[0], torch.Tensor):
        return torch.empty_like(values[0], dtype=reduce(torch.promote_types, [v.dtype for v in values]))
    return max(values, key=lambda number: (bool, int, float, complex).index(type(number)))
