"""The building block that samples a tensor on a grid (``grid_sampler``)."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call

grid = block(
    lambda input, grid, interpolation_mode, padding_mode, align_corners, output_mask=None: call(
        aten.grid_sampler.default, input, grid, interpolation_mode, padding_mode, align_corners
    ),
    "aten.grid_sampler.default",
)
