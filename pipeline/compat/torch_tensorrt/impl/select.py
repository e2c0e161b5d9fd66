"""Indexing and scattering."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block, of_one, refused
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call

aten = torch.ops.aten

select = of_one(aten.select.int, "input", "dim", "index")
index_select = of_one(aten.index_select.default, "input", "dim", "index")
gather = of_one(aten.gather.default, "input", "dim", "index")
scatter_add = of_one(aten.scatter_add.default, "input", "dim", "index", "src")


@block
def index(input: Argument, indices: Sequence[Argument]) -> Expression:
    """aten.index.Tensor: a tensor of integers for each dim, or None"""
    return call(aten.index.Tensor, input, list(indices))


@block
def scatter(input: Argument, dim: int, index: Argument, src: Argument) -> Expression:
    """aten.scatter.src, or aten.scatter.value of a number"""
    number = isinstance(src, bool | int | float)
    return call(aten.scatter.value if number else aten.scatter.src, input, dim, index, src)


@block
def index_put_converter(
    input_tensor: Argument, input_indices: Sequence[Argument], values: Argument, accumulate: bool = False
) -> Expression:
    """aten.index_put.default"""
    return call(aten.index_put.default, input_tensor, list(input_indices), values, accumulate)


index_put_scatter_add_plugin = refused(
    "impl.select.index_put_scatter_add_plugin",
    "TensorRT-RTX has no plugin layers",
    "write impl.select.index_put_converter(…, accumulate=True)",
)
