"""The building block for PReLU."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call

prelu = block(
    lambda input, weight: call(
        aten.prelu.default if len(weight.shape) < len(input.shape) else aten._prelu_kernel.default, input, weight
    ),
    "aten.prelu.default, of a slope for each channel; aten._prelu_kernel.default of slopes that broadcast",
)
