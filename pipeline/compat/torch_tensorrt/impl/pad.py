"""Padding: two numbers a dim, the last dim first."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import aten, call

pad = block(
    lambda input, pad, mode="constant", value=None: call(aten.pad.default, input, pad, mode, value), "aten.pad.default"
)
constant_padNd = block(
    lambda input, pad, value=0: call(aten.pad.default, input, pad, "constant", value), "aten.pad.default with a number"
)
reflection_padNd = block(
    lambda input, padding: call(aten.pad.default, input, padding, "reflect"), "aten.pad.default, mirrored"
)
replication_padNd = block(
    lambda input, padding: call(aten.pad.default, input, padding, "replicate"),
    "aten.pad.default with the elements at the border",
)
circular_padNd = block(
    lambda input, padding: call(aten.pad.default, input, padding, "circular"), "aten.pad.default with the other end"
)
