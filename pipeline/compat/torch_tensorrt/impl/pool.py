"""Building blocks for pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call, require
from pipeline.compat.torch_tensorrt.values import per_dim

AVERAGE: Final = {1: aten.avg_pool1d.default, 2: aten.avg_pool2d.default, 3: aten.avg_pool3d.default}
LARGEST: Final = {1: aten.max_pool1d.default, 2: aten.max_pool2d.default, 3: aten.max_pool3d.default}
ADAPTIVE: Final = {
    1: aten.adaptive_avg_pool1d.default,
    2: aten._adaptive_avg_pool2d.default,
    3: aten._adaptive_avg_pool3d.default,
}
"""The adaptive average pooling operators, by the number of spatial dims."""

Sizes = int | Sequence[int]


@block
def avg_poolNd(
    input: Argument,
    kernel_size: Sequence[int],
    stride: Sizes,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Expression:
    """Add aten.avg_pool1d, 2d or 3d for a ``kernel_size`` of one, two or three numbers."""
    dims = len(kernel_size)
    spatial = (list(kernel_size), per_dim(stride, dims), per_dim(padding, dims))
    require(dims > 1 or divisor_override is None, "impl.pool.avg_poolNd", "1d has no divisor_override", "leave it out")
    own = () if dims == 1 else (divisor_override,)
    return call(AVERAGE[dims], input, *spatial, ceil_mode, count_include_pad, *own)


@block
def max_poolNd(
    input: Argument,
    kernel_size: Sequence[int],
    stride: Sizes,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Expression:
    """Add aten.max_pool1d, 2d or 3d for a ``kernel_size`` of one, two or three numbers."""
    dims = len(kernel_size)
    spatial = (list(kernel_size), per_dim(stride, dims), per_dim(padding, dims), per_dim(dilation, dims))
    return call(LARGEST[dims], input, *spatial, ceil_mode)


@block
def adaptive_avg_poolNd(input: Argument, output_size: Sequence[int]) -> Expression:
    """Add aten.adaptive_avg_pool1d, 2d or 3d for an ``output_size`` of one, two or three numbers."""
    return call(ADAPTIVE[len(output_size)], input, list(output_size))


@block
def adaptive_avg_pool1d(input: Argument, output_size: Sizes) -> Expression:
    """Add the layers of aten.adaptive_avg_pool1d.default."""
    return call(ADAPTIVE[1], input, per_dim(output_size, 1))
