"""Building blocks for padding, which is given as two numbers for each dim, the last dim first."""

from pipeline.aten.types import Function
from pipeline.compat.torch_tensorrt.blocks import aten, block, call

pad = block(
    lambda input, pad, mode="constant", value=None: call(aten.pad.default, input, pad, mode, value), "aten.pad.default"
)
constant_padNd = block(
    lambda input, pad, value=0: call(aten.pad.default, input, pad, "constant", value), "aten.pad.default with a number"
)


def _create_pad_block(mode: str, ending: str) -> Function:
    """Create a building block that pads by aten.pad.default with this ``mode``; ``ending`` completes its docstring."""
    return block(lambda input, padding: call(aten.pad.default, input, padding, mode), f"aten.pad.default{ending}")


reflection_padNd = _create_pad_block("reflect", ", mirrored")
replication_padNd = _create_pad_block("replicate", " with the elements at the border")
circular_padNd = _create_pad_block("circular", " with the other end")
