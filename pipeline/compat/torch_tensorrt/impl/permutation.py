"""Building blocks that permute dims or roll a tensor along dims."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call, of_call

permute = of_call(aten.permute.default, "input", "permutation")
roll = block(
    lambda input, shifts, dims=(): call(
        aten.roll.default, input, *([each] if isinstance(each, int) else each for each in (shifts, dims))
    ),
    "aten.roll.default",
)
