"""Permutation and rolling of dims."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call

aten = torch.ops.aten


@block
def permute(input: Argument, permutation: Sequence[int]) -> Expression:
    """aten.permute.default"""
    return call(aten.permute.default, input, list(permutation))


@block
def roll(input: Argument, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Expression:
    """aten.roll.default"""
    by, along = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    return call(aten.roll.default, input, by, along)
