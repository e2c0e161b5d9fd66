"""Padding: two numbers a dim, the last dim first."""

from pipeline.aten.types import Function
from pipeline.compat.torch_tensorrt.blocks import aten, block, call

pad = block(
    lambda input, pad, mode="constant", value=None: call(aten.pad.default, input, pad, mode, value), "aten.pad.default"
)
constant_padNd = block(
    lambda input, pad, value=0: call(aten.pad.default, input, pad, "constant", value), "aten.pad.default with a number"
)


def _by_mode(mode: str, does: str) -> Function:
    return block(lambda input, padding: call(aten.pad.default, input, padding, mode), f"aten.pad.default{does}")


reflection_padNd = _by_mode("reflect", ", mirrored")
replication_padNd = _by_mode("replicate", " with the elements at the border")
circular_padNd = _by_mode("circular", " with the other end")
