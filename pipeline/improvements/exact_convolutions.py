"""exact_convolutions: replace float16 convolutions, which TensorRT sums in float16, by matmuls summed in float32."""

from __future__ import annotations

import itertools
import math

import torch
from attrs import frozen

from pipeline.aten.types import Argument
from pipeline.improvements.rewriting import CallBuilder, Node, Rewriting, argument, aten, dtype_of, improvement, rank_of
from pipeline.quirks import is_avoided
from pipeline.shapes.environment import bounds, shape_of

TERMS, MAPS = 2304, 320
"""The minimum number of terms of a sum and of output channels for which the pass uses a matmul by default: the error in
float16 grows with the terms, and all output channels share the cost of reading the windows."""
WINDOWS = 256 << 20
"""The default maximum bytes of windows that are written to memory: those of 65,536 pixels with 3 x 3 x 228 channels."""
WINDOWS_AT_MOST = 1 << 30
"""The maximum bytes of windows that are written to memory if the setting `use_fp32_acc` is True."""
FEW_PIXELS = 4096
"""The default maximum number of pixels for which a convolution with many terms runs in float32, if a matmul of its
windows would be slow. In float32 it takes 2.5 times as long, but a small part of a network's time."""
FEW_TERMS = 128
"""The maximum number of terms for which a float16 sum is as exact as eager's; a depthwise 7 x 7 kernel has 49 terms."""
ALIGNED = 8
"""The number of terms of a fast float16 matmul must be a multiple of this."""
TAPS = 27
"""The maximum number of elements of a convolution kernel: each element needs a separate slice of the image."""
MOSTLY = 0.8
"""From this share of multiplications in matmuls on, 1 x 1 convolutions become matmuls, too. TensorRT stores channels
last around its convolutions and channels first around matmuls, and each change of layout costs a copy."""


@improvement(after="patch_embedding")
def exact_convolutions(rewriting: Rewriting) -> None:
    """Replace float16 convolutions by a matmul of weights with windows of the image, or with pixels for 1 x 1 kernels.

    TensorRT-RTX accumulates float16 convolutions in float16 (quirk ``convolution-sums``). By default only sums of many
    terms are replaced: by matmuls if the convolution has many output channels and its windows need little memory, else
    by float32 convolutions if it has few pixels. The matmuls, measured alone, took 0.7 to 1.5 times as long on an H200
    (docs/notes/2026-11-29-real-sizes.md). ``use_fp32_acc=True`` replaces all convolutions, by float32 convolutions if
    the windows would need too much memory; ``use_fp32_acc=False`` replaces none.
    """
    settings = rewriting.program.settings
    if settings.use_fp32_acc is False or not is_avoided("convolution-sums"):
        return
    found = (_match_convolution(rewriting, node) for node in rewriting.nodes(aten.convolution.default))
    convolutions = [convolution for convolution in found if convolution is not None]
    every = settings.use_fp32_acc is True
    wide = [c for c in convolutions if c.kernel_elements > 1]
    mostly = sum(c.products for c in wide if c.is_worth_a_matmul) >= MOSTLY * sum(c.products for c in wide) > 0
    for c in convolutions:
        if c.terms <= FEW_TERMS:
            continue
        done = c.is_pixelwise and (every or mostly) and _use_pixel_matmul(rewriting.before(c.node), c, every)
        if not done and c.windows_fit_in_memory(every) and (every or (c.kernel_elements > 1 and c.is_worth_a_matmul)):
            done = _use_window_matmul(rewriting.before(c.node), c)
        if not done and (every or c.is_cheap_in_float32):
            _replace_by_float32_convolution(rewriting.before(c.node))


@frozen
class Convolution:
    """A float16 convolution with constant weights [maps, channels / groups, …]. ``pixels``: the number of output pixels
    in all batches, at the profiles' opt sizes. ``terms``: the number of products in each sum."""

    node: Node
    pixels: int
    groups: int
    maps: int
    terms: int
    kernel: tuple[int, ...]

    @property
    def kernel_elements(self) -> int:
        return math.prod(self.kernel)

    @property
    def products(self) -> int:
        """The number of multiplications of the convolution."""
        return self.pixels * self.terms * self.maps

    @property
    def is_worth_a_matmul(self) -> bool:
        """Return whether a matmul of windows takes about as long as TensorRT's convolution and is much more exact."""
        return self.terms >= TERMS and self.maps >= MAPS and self.windows_fit_in_memory(fp32_acc=False)

    @property
    def is_cheap_in_float32(self) -> bool:
        """Return whether a convolution has many terms and few pixels, so that float32 costs little time."""
        return self.terms >= TERMS and self.kernel_elements > 1 and self.pixels <= FEW_PIXELS

    @property
    def is_pixelwise(self) -> bool:
        """Return whether each output pixel depends on exactly one input pixel, and all input pixels are read."""
        is_dense = not any(self.option_per_dim("padding")) and set(self.option_per_dim("stride")) == {1}
        return self.kernel_elements == 1 and self.groups == 1 and is_dense

    def windows_fit_in_memory(self, fp32_acc: bool) -> bool:
        """Return whether the windows (the input elements that each output pixel multiplies) of all output pixels fit in
        the memory that the pass may use; ``fp32_acc``: whether ``use_fp32_acc`` is True, which allows more memory."""
        size = self.pixels * self.terms * 2
        return self.groups == 1 and self.kernel_elements <= TAPS and size <= (WINDOWS_AT_MOST if fp32_acc else WINDOWS)

    def option_per_dim(self, name: str) -> list[int]:
        """Return a convolution argument, such as the stride, as a list with a value for each spatial dim."""
        value: list[int] = list(argument(self.node, name))
        return value * (len(self.kernel) if len(value) == 1 else 1)


def _match_convolution(rewriting: Rewriting, node: Node) -> Convolution | None:
    """Match a node as a float16 convolution with constant weights and no data-dependent size; else return None."""
    x, weight = node.args[:2]
    if not isinstance(x, Node) or not isinstance(weight, Node) or argument(node, "transposed"):
        return None
    if dtype_of(node) != torch.float16 or rank_of(x) != rank_of(weight):
        return None
    if not rewriting.is_constant(weight) or rewriting.is_constant(x):
        return None
    batch, _, *image = shape_of(node.meta["val"])
    symbols = rewriting.program.shapes
    dynamic = [size for size in (batch, *image) if not isinstance(size, int)]
    if any(str(symbol) not in symbols for size in dynamic for symbol in size.free_symbols):
        return None
    pixels = math.prod(bounds(size, symbols).opt for size in (batch, *image))
    maps, channels, *kernel = map(int, weight.meta["val"].shape)
    return Convolution(node, pixels, argument(node, "groups"), maps, channels * math.prod(kernel), tuple(kernel))


def _use_window_matmul(create: CallBuilder, convolution: Convolution) -> bool:
    """Replace a convolution by a matmul of windows [N, …, terms], the inputs that each output pixel sums, and weights
    [output channels, terms]. Return False, and change nothing, if a converter does not accept the new calls."""
    x, weight, bias = convolution.node.args[:3]
    rank = len(convolution.kernel)
    last = (0, *range(2, rank + 2), 1)
    image = create(aten.permute.default, x, last)
    padding = convolution.option_per_dim("padding")
    if any(padding):
        pads = [p for pad in reversed(padding) for p in (pad, pad)]
        image = create(aten.constant_pad_nd.default, image, [0, 0, *pads], 0.0)
    parts = _slice_windows(create, convolution, image)
    turned = create(aten.permute.default, weight, last)
    matrix = create(aten.reshape.default, turned, [convolution.maps, convolution.terms])
    if bias is not None:
        # a linear layer adds the bias to the rounded sum; here it is a term of the sum
        matrix = _append_bias_column(create, matrix, bias)
        parts[-1] = create(aten.constant_pad_nd.default, parts[-1], [0, ALIGNED], 1.0)
    windows = create(aten.cat.default, parts, rank + 1)
    result = create(aten.linear.default, windows, matrix)
    return create.replace(create(aten.permute.default, result, (0, rank + 1, *range(1, rank + 1))))


def _slice_windows(create: CallBuilder, convolution: Convolution, image: Node) -> list[Node]:
    """Return for each element of the kernel the slice of ``image`` [N, …, C] with the pixels that it multiplies."""
    counts = shape_of(convolution.node.meta["val"])[2:]
    strides, dilations = convolution.option_per_dim("stride"), convolution.option_per_dim("dilation")
    parts: list[Node] = []
    for place in itertools.product(*map(range, convolution.kernel)):
        part = image
        for dim, (at, count, stride, dilation) in enumerate(zip(place, counts, strides, dilations, strict=True), 1):
            start = at * dilation
            last = convolution.kernel[dim - 1] - 1
            # to the end if no later window starts before it; dynamic sizes end at a distance from the end
            stop: Argument = start + (count - 1) * stride + 1 if isinstance(count, int) else start - last * dilation
            if stop == 0 or (start, stop, stride) == (0, image.meta["val"].shape[dim], 1):
                stop = torch.iinfo(torch.int64).max
            part = create(aten.slice.Tensor, part, dim, start, stop, stride)
        parts.append(part)
    return parts


def _use_pixel_matmul(create: CallBuilder, convolution: Convolution, bias_in_sums: bool) -> bool:
    """Replace a 1 x 1 convolution by a matmul of weights [output channels, channels] and pixels [N, channels, …];
    return whether converters accept it. ``bias_in_sums``: add the bias in the float32 sums, although this copies the
    pixels; else add it to the sums after they are rounded to float16."""
    x: Argument = convolution.node.args[0]
    weight, bias = convolution.node.args[1:3]
    rank, maps = len(convolution.kernel), convolution.maps
    sizes = [create.size(x, dim) for dim in (0, *range(2, rank + 2))]
    pixels = create(aten.flatten.using_ints, x, 2) if rank > 1 else x
    matrix = create(aten.reshape.default, weight, [maps, convolution.terms])
    if bias is not None and bias_in_sums:
        matrix = _append_bias_column(create, matrix, bias)
        pixels = create(aten.constant_pad_nd.default, pixels, [0, 0, 0, ALIGNED], 1.0)
    result = create(aten.matmul.default, create(aten.unsqueeze.default, matrix, 0), pixels)
    if bias is not None and not bias_in_sums:
        result = create(aten.add.Tensor, result, create(aten.reshape.default, bias, [1, maps, 1]))
    return create.replace(create(aten.reshape.default, result, [sizes[0], maps, *sizes[1:]]))


def _append_bias_column(create: CallBuilder, matrix: Node, bias: Argument) -> Node:
    """Append to the weights the bias and 7 columns of zeros; the caller appends 8 ones to the inputs (`ALIGNED`)."""
    column = create(aten.reshape.default, bias, [matrix.meta["val"].shape[0], 1])
    padded = create(aten.constant_pad_nd.default, column, [0, ALIGNED - 1], 0.0)
    return create(aten.cat.default, [matrix, padded], 1)


def _replace_by_float32_convolution(create: CallBuilder) -> None:
    """Replace a float16 convolution by a float32 convolution between casts.

    ``maximum(x, x)`` of the flattened result keeps later layers out of its kernel (quirk ``rounded-convolutions``).
    """
    x, weight, bias, *options = create.node.args
    wide = [each if each is None else create.cast(each, torch.float32) for each in (x, weight, bias)]  # type: ignore[arg-type]
    rounded = create.cast(create(aten.convolution.default, *wide, *options), torch.float16)
    sizes = [create.size(rounded, dim) for dim in range(rank_of(rounded))]
    flat = create(aten.reshape.default, rounded, [-1])
    create.replace(create(aten.reshape.default, create(aten.maximum.default, flat, flat), sizes))
