"""What convolution and pooling need around their windows: borders, and elements set apart, of any size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pipeline.converters.context import ConversionContext
from pipeline.impl import base
from pipeline.impl.base import ITensor, Size
from pipeline.trt import trt


def plus(ctx: ConversionContext, name: str, size: Size, more: int) -> Size:
    """A size and a number."""
    return _combined(ctx, name, "SUM", size, more) if more else size


def times(ctx: ConversionContext, name: str, size: Size, factor: int) -> Size:
    """A size times a number."""
    return _combined(ctx, name, "PROD", size, factor) if factor != 1 else size


def _combined(ctx: ConversionContext, name: str, operation: str, size: Size, number: int) -> Size:
    if isinstance(size, int):
        return size + number if operation == "SUM" else size * number
    other = base.constant(ctx, name, np.array([number], dtype=np.int64))
    return base.elementwise(ctx, name, operation, base.size_tensor(ctx, name, size), other)


def window(
    ctx: ConversionContext,
    name: str,
    x: ITensor,
    start: Sequence[int],
    shape: Sequence[Size],
    stride: Sequence[int] | None = None,
    fill: float | None = None,
) -> ITensor:
    """``shape`` elements of ``x`` from ``start`` on; with ``fill``, what lies outside of ``x`` has that value."""
    static = all(isinstance(s, int) for s in shape)
    sizes = tuple(shape) if static else (0,) * len(shape)
    layer = ctx.add(name, "slice", x, tuple(start), sizes, tuple(stride or (1,) * len(shape)))
    if not static:
        layer.set_input(2, base.shape_tensor(ctx, name, shape))
    if fill is not None:
        layer.mode = trt.SampleMode.FILL
        if fill:
            layer.set_input(4, base.constant(ctx, name, torch.tensor(fill, dtype=base.dtype_of(x))))
    return layer.get_output(0)


def padded(
    ctx: ConversionContext, name: str, x: ITensor, pre: Sequence[int], post: Sequence[int], fill: float = 0.0
) -> ITensor:
    """``x`` with a border around its last dims: so many elements before and after each."""
    if not any(pre) and not any(post):
        return x
    leading = base.rank(x) - len(pre)
    before, after = [0] * leading + list(pre), [0] * leading + list(post)
    grown = [a + b for a, b in zip(before, after, strict=True)]
    shape = [plus(ctx, name, s, g) for s, g in zip(base.sizes(ctx, name, x), grown, strict=True)]
    return window(ctx, name, x, [-b for b in before], shape, fill=fill)


def spread(ctx: ConversionContext, name: str, x: ITensor, spacing: Sequence[int]) -> ITensor:
    """``x`` with ``spacing - 1`` zeros after each element of its last dims."""
    leading = base.rank(x) - len(spacing)
    sizes = base.sizes(ctx, name, x)
    cells = base.unsqueeze(ctx, name, x, [leading + 2 * i + 1 for i in range(len(spacing))])
    pairs = [s for size, space in zip(sizes[leading:], spacing, strict=True) for s in (size, space)]
    cells = window(ctx, name, cells, [0] * (leading + len(pairs)), [*sizes[:leading], *pairs], fill=0.0)
    wide = [times(ctx, name, size, space) for size, space in zip(sizes[leading:], spacing, strict=True)]
    return base.reshape(ctx, name, cells, [*sizes[:leading], *wide])
