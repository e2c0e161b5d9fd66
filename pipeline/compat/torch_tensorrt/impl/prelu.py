"""PReLU."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import aten, call

prelu = block(
    lambda input, weight: call(
        aten.prelu.default if len(weight.shape) < len(input.shape) else aten._prelu_kernel.default, input, weight
    ),
    "aten.prelu.default, of a slope for each channel; aten._prelu_kernel.default of slopes that broadcast",
)
