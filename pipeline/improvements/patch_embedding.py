"""patch_embedding: replace a convolution over disjoint patches, as in vision transformers, by a matmul."""

from __future__ import annotations

import math

from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.improvements.rewriting import Argument, CallBuilder, Node, Rewriting, argument, aten, improvement, rank_of
from pipeline.shapes.environment import shape_of

LARGE = 64
"""The minimum number of elements for which a convolution kernel counts as large."""


@improvement(after="fold_batch_norm")
def patch_embedding(rewriting: Rewriting) -> None:
    """Replace a convolution whose stride is its large kernel (no padding, groups or dilation) by a matmul of patches.

    Sizes of the image may be dynamic if they are multiples of the kernel's. A float16 matmul is summed in float32, and
    a convolution is not (quirk ``convolution-sums``). TensorRT-RTX 1.4 has no fast kernel for such a convolution on an
    H200: the first layer of ViT-B/16 took 0.15 ms of 0.79 ms. Small kernels are fast already: the 4 x 4 and 2 x 2
    kernels of ConvNeXt took 1 % longer as matmuls.
    """
    for node in rewriting.nodes(aten.convolution.default):
        counted = not free_unbacked_symbols(node.meta["val"])
        if counted and _has_disjoint_patches(node) and rewriting.is_constant(node.args[1]):
            _replace_by_matmul_of_patches(rewriting.before(node))


def _has_disjoint_patches(convolution: Node) -> bool:
    """Return whether the windows of a convolution cover the image exactly, without overlap."""
    kernel = _sizes_of(convolution.args[1])[2:]
    plain = not argument(convolution, "transposed") and argument(convolution, "groups") == 1
    shifted = any(argument(convolution, "padding")) or any(d != 1 for d in argument(convolution, "dilation"))
    image = shape_of(convolution.all_input_nodes[0].meta["val"])[2:]
    if not plain or shifted or rank_of(convolution) != 2 + len(kernel):
        return False
    strides = list(argument(convolution, "stride")) * (len(kernel) if len(argument(convolution, "stride")) == 1 else 1)
    exact = all(size % k == 0 for size, k in zip(image, kernel, strict=True))
    return exact and strides == kernel and math.prod(kernel) >= LARGE


def _sizes_of(node: Argument) -> list[Argument]:
    return list(node.meta["val"].shape)


def _replace_by_matmul_of_patches(create: CallBuilder) -> None:
    x, weight, bias = create.node.args[:3]
    (_, channels, *image), (features, _, *kernel) = _sizes_of(x), _sizes_of(weight)
    dims, terms = len(kernel), channels * math.prod(kernel)
    ordered_dims = [0, *range(2, 2 + 2 * dims, 2), 1, *range(3, 3 + 2 * dims, 2)]
    matrix = create(aten.reshape.default, weight, [features, terms])
    if not all(isinstance(size, int) for size in image):
        for dim in reversed(range(dims)):
            x = create(aten.unflatten.int, x, 2 + dim, [-1, kernel[dim]])
        ordered = create(aten.permute.default, x, ordered_dims)
        product = create(aten.linear.default, create(aten.flatten.using_ints, ordered, 1 + dims), matrix, bias)
        create.replace(create(aten.permute.default, product, [0, 1 + dims, *range(1, 1 + dims)]))
        return
    counts = [s // k for s, k in zip(image, kernel, strict=True)]
    pairs = [size for pair in zip(counts, kernel, strict=True) for size in pair]
    ordered = create(aten.permute.default, create(aten.view.default, x, [-1, channels, *pairs]), ordered_dims)
    rows = create(aten.reshape.default, ordered, [-1, math.prod(counts), terms])
    product = create(aten.linear.default, rows, matrix, bias)
    turned = create(aten.permute.default, product, [0, 2, 1])
    create.replace(create(aten.view.default, turned, [-1, features, *counts]))
