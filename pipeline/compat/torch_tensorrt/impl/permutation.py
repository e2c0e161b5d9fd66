"""Permutation and rolling of dims."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import block, of_one
from pipeline.compat.torch_tensorrt.calls import aten, call

permute = of_one(aten.permute.default, "input", "permutation")
roll = block(
    lambda input, shifts, dims=(): call(
        aten.roll.default, input, *([each] if isinstance(each, int) else each for each in (shifts, dims))
    ),
    "aten.roll.default",
)
