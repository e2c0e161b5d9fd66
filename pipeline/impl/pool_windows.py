"""Pad, dilate and slice tensors for the windows of convolution and pooling, for static and dynamic sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, block
from pipeline.trt import trt


@block
def combine_size(net: Net, operation: str, size: Size, number: int) -> Size:
    """Return a size plus a number (``SUM``), or times a number (``PROD``)."""
    if isinstance(size, int):
        return size + number if operation == "SUM" else size * number
    if number == {"SUM": 0, "PROD": 1}[operation]:
        return size
    other = base.constant(net, np.array([number], dtype=np.int64))
    return base.elementwise(net, operation, base.size_tensor(net, size), other)


@block
def slice_window(net: Net, x: ITensor, start: Sequence[int], shape: Sequence[Size]) -> ITensor:
    """Slice ``shape`` elements from ``start`` on in every dim; elements outside of ``x`` are 0."""
    static = all(isinstance(s, int) for s in shape)
    sizes = tuple(shape) if static else (0,) * len(shape)
    layer = net.add("slice", x, tuple(start), sizes, (1,) * len(shape))
    if not static:
        layer.set_input(2, base.shape_tensor(net, shape))
    layer.mode = trt.SampleMode.FILL
    return layer.get_output(0)


@block
def pad_border(net: Net, x: ITensor, pre: Sequence[int], post: Sequence[int]) -> ITensor:
    """Pad each of the last dims with zeros: by ``pre`` elements before and ``post`` elements after it."""
    if not any(pre) and not any(post):
        return x
    leading = base.rank(x) - len(pre)
    before, after = [0] * leading + list(pre), [0] * leading + list(post)
    grown = [a + b for a, b in zip(before, after, strict=True)]
    shape = [combine_size(net, "SUM", s, g) for s, g in zip(base.sizes(net, x), grown, strict=True)]
    return slice_window(net, x, [-b for b in before], shape)


@block
def insert_zeros(net: Net, x: ITensor, spacing: Sequence[int]) -> ITensor:
    """Insert ``spacing - 1`` zeros after each element of the last dims."""
    leading = base.rank(x) - len(spacing)
    sizes = base.sizes(net, x)
    cells = base.unsqueeze(net, x, [leading + 2 * i + 1 for i in range(len(spacing))])
    pairs = [s for size, space in zip(sizes[leading:], spacing, strict=True) for s in (size, space)]
    cells = slice_window(net, cells, [0] * (leading + len(pairs)), [*sizes[:leading], *pairs])
    wide = [combine_size(net, "PROD", size, space) for size, space in zip(sizes[leading:], spacing, strict=True)]
    return base.reshape(net, cells, [*sizes[:leading], *wide])


@frozen
class Windows:
    """The windows of a pooling, by pooled dim. ``sizes``, ``results``: its input and result sizes; None if dynamic."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    sizes: list[int | None]
    results: list[int | None]
    ceil_mode: bool = False

    @property
    def has_static_sizes(self) -> bool:
        return None not in self.sizes

    @property
    def is_single(self) -> bool:
        """Whether a single window covers exactly the input. TensorRT-RTX 1.6.1's pooling layer then returns wrong
        averages of 19 x 19 elements that are 2,560 apart (EfficientNet-B7's last pooling, on an H200)."""
        return self.kernel == self.sizes and not any(self.padding) and set(self.dilation) | set(self.results) == {1}

    @property
    def rounds_up(self) -> bool:
        """Whether ``ceil_mode`` may extend the last window beyond the padding, by a length known only at run time."""
        return self.ceil_mode and not self.has_static_sizes

    @property
    def overhangs(self) -> list[int]:
        """The number of elements by which the last window extends beyond the padding, per dim; 0 if unknown."""
        rows = zip(self.sizes, self.results, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [
            0 if size is None or result is None else max(0, (result - 1) * s + d * (k - 1) + 1 - size - 2 * p)
            for size, result, k, s, p, d in rows
        ]

    def without_border(self) -> Windows:
        """Return the same windows for a tensor that is already padded."""
        return evolve(self, sizes=[None] * len(self.sizes), ceil_mode=False)

    def positions(self) -> list[np.ndarray[Any, Any]]:
        """Return, for each dim, a matrix with a row per window: the input positions of the window's elements."""
        rows = zip(self.sizes, self.results, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [
            _matrix_of_positions([[o * s - p + j * d for j in range(k)] for o in range(result)], size)
            for size, result, k, s, p, d in rows
            if size is not None and result is not None
        ]


def adaptive_positions(input_size: int, result_size: int) -> np.ndarray[Any, Any]:
    """Return a matrix [windows, elements] of input positions for nearly equal windows; short rows repeat their last."""
    starts = [i * input_size // result_size for i in range(result_size)]
    ends = [-(-(i + 1) * input_size // result_size) for i in range(result_size)]
    return _matrix_of_positions([list(range(a, b)) for a, b in zip(starts, ends, strict=True)], input_size)


def _matrix_of_positions(positions: list[list[int]], size: int) -> np.ndarray[Any, Any]:
    """Return a matrix of the positions inside the input, a row per window; a short row repeats its last position."""
    inside = [[p for p in row if 0 <= p < size] for row in positions]
    longest = max(map(len, inside), default=1)
    return np.array([row + row[-1:] * (longest - len(row)) for row in inside], dtype=np.int64).reshape(-1, longest)
