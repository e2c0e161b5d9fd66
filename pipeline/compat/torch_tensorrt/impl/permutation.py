"""Building blocks that permute dims or roll a tensor along dims."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call, op_block

permute = op_block(aten.permute.default, "input", "permutation")
roll = block(
    lambda input, shifts, dims=(): call(
        aten.roll.default, input, *([each] if isinstance(each, int) else each for each in (shifts, dims))
    ),
    "aten.roll.default",
)
