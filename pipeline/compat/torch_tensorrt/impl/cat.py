"""The building block that concatenates tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call
from pipeline.compat.torch_tensorrt.values import torch_dtype


@block
def cat(input: Sequence[Argument], dim: int, cast_dtype: Argument = None) -> Expression:
    """Concatenate tensors (aten.cat.default); a number becomes a tensor of one element. ``cast_dtype`` is the
    result's dtype."""
    rows = [torch.tensor([each]) if isinstance(each, bool | int | float) else each for each in input]
    cast = [
        each if cast_dtype is None else call(aten._to_copy.default, each, dtype=torch_dtype(cast_dtype))
        for each in rows
    ]
    return call(aten.cat.default, cast, dim)
