"""A slice of a tensor replaced by another tensor."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import aten, call

slice_scatter = block(
    lambda input, src, dim, start=None, end=None, step=None: call(
        aten.slice_scatter.default, input, src, dim, start, end, 1 if step is None else step
    ),
    "aten.slice_scatter.default",
)
