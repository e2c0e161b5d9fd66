"""Convert scatter operators: writes by index, and reductions of elements that have the same index."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pipeline.aten.types import Argument, aten
from pipeline.converters.binding import CompilationSettings, Rejection, argument, converts
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import base
from pipeline.impl import scatter as _scatter
from pipeline.impl.base import ITensor, Net, Value
from pipeline.impl.index import iota
from pipeline.impl.index_put import index_put
from pipeline.impl.shape import concatenate, negate, size_sum
from pipeline.impl.slice import diagonal_start, flatten_dims, is_data_dependent, narrow, slice_start
from pipeline.shapes.environment import shape_of

MOST = (1 << 31) - 1
"""The maximum number of elements of a TensorRT tensor."""


@register_torch_trt_decomposition(aten.index_fill.int_Scalar)
@register_torch_trt_decomposition(aten.index_fill.int_Tensor)
def index_fill(self: Tensor, dim: int, index: Tensor, value: Argument) -> Tensor:
    """Decompose ``index_fill`` to ``index_put``; negative indices count from the end."""
    row = self.reshape(1) if self.dim() == 0 else self
    fill = (
        value.to(self.dtype)
        if isinstance(value, Tensor)
        else torch.full((), value, dtype=self.dtype, device=self.device)
    )
    places = [*[None] * (dim % row.dim()), index.reshape(-1)]
    written: Tensor = aten.index_put(row, places, fill)
    return written.reshape(self.shape)


@converts(aten.scatter.value, aten.scatter.src)
def scatter(net: Net, input: Value, dim: int, index: Value, src: Value = None, value: Value = None) -> ITensor:
    """scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return _scatter.scatter(net, base.tensor(net, input), dim, index, value if src is None else src)


def check_comparison_size(*sizes: Any) -> bool | Rejection:
    """Return a `Rejection` if a comparison of all indices with all positions, of shape ``sizes``, exceeds `MOST`."""
    count = math.prod(sizes) if all(isinstance(s, int) for s in sizes) else 0
    if count <= MOST:
        return True
    return Rejection(
        f"TensorRT has no scatter with reduction, and the comparison of all indices with all positions, which "
        f"replaces it, needs {count} elements: the maximum is {MOST}"
    )


def _check_scatter_reduce(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The number of positions times indices (all are compared) must be at most 2**31 - 1, the rank at most 7."""
    x, index = argument(node, "self").meta["val"], argument(node, "index").meta["val"]
    if x.dim() > 7:
        return Rejection("the reduction needs a tensor of rank 9, and TensorRT supports rank 8", "flatten two dims")
    return check_comparison_size(*x.shape, index.numel() if index.dim() < 2 else index.shape[argument(node, "dim")])


@converts(
    *(aten.scatter_add.default, aten.scatter_reduce.two, aten.scatter.reduce, aten.scatter.value_reduce),
    validator=_check_scatter_reduce,
)
def scatter_reduce(
    net: Net,
    input: Value,
    dim: int,
    index: Value,
    src: Value = None,
    value: Value = None,
    reduce: str = "sum",
    include_self: bool = True,
) -> ITensor:
    """scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, …) -> Tensor"""
    source, reduction = value if src is None else src, {"add": "sum", "multiply": "prod"}.get(reduce, reduce)
    return _scatter_reduce(net, base.tensor(net, input), dim, index, source, reduction, include_self)


def _scatter_reduce(net: Net, x: Any, dim: int, index: Any, source: Any, reduction: str, include_self: bool) -> Any:
    """Scatter with a reduction, after padding index and source to the sizes of ``x`` by indices that match nothing."""
    sizes, own = base.known_sizes(net, base.tensor(net, x, rank=1)), base.rank(x)
    index = base.tensor(net, index, rank=1)
    given = base.known_sizes(net, index)
    if not isinstance(source, (int, float)) and base.rank(source) == 0:
        source = base.tensor(net, source, rank=1)
    source = _scatter.fit_to_sizes(net, source, given, base.dtype_of(x))
    dim = base.axis(dim, len(sizes))
    full = [given[i] if i == dim else s for i, s in enumerate(sizes)]
    index, source = _scatter.extend_to_sizes(net, index, full, -1), _scatter.extend_to_sizes(net, source, full, 0)
    result = _scatter.scatter_reduce(net, base.tensor(net, x, rank=1), dim, index, source, reduction, include_self)
    return base.reshape(net, result, []) if own == 0 else result


@converts(aten.index_copy.default)
def index_copy(net: Net, input: Value, dim: int, index: Value, source: Value) -> ITensor:
    """index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"""
    input, source = base.tensor(net, input), base.tensor(net, source)
    if base.rank(input) == 0:
        return base.reshape(net, source, [])
    index = base.tensor(net, index, rank=1)
    return _scatter.scatter_along(net, input, base.axis(dim, base.rank(input)), index, source)


@converts(aten.index_reduce.default, validator=_check_scatter_reduce)
def index_reduce(
    net: Net, input: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool
) -> ITensor:
    """index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, …) -> Tensor"""
    input, source = base.tensor(net, input), base.tensor(net, source)
    if base.rank(input) == 0:
        return _scatter_reduce(net, input, dim, index, source, reduce, include_self)
    dim, index = base.axis(dim, base.rank(input)), base.tensor(net, index, rank=1)
    column = base.reshape(net, index, [-1 if i == dim else 1 for i in range(base.rank(input))])
    return _scatter.scatter_reduce(net, input, dim, column, source, reduce, include_self)


@register_torch_trt_decomposition(aten.select_scatter.default)
def size_one_select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Argument:
    """Decompose ``select_scatter`` on a dim of size 1: all elements are overwritten, so ``self`` is not read."""
    return src.unsqueeze(dim).to(self.dtype, copy=True) if shape_of(self)[dim] == 1 else NotImplemented


@register_torch_trt_decomposition(aten.slice_scatter.default)
def whole_dim_slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Argument:
    """Decompose ``slice_scatter`` of a slice that covers the whole tensor: the result is a copy of ``src``."""
    return src.to(self.dtype, copy=True) if shape_of(src) == shape_of(self) else NotImplemented


@register_torch_trt_decomposition(aten.diagonal_scatter.default)
def one_element_diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Argument:
    """Decompose ``diagonal_scatter`` on matrices of one element: the result is a copy of ``src``."""
    sizes = shape_of(self)
    if (sizes[dim1], sizes[dim2], shape_of(src)[-1]) != (1, 1, 1):
        return NotImplemented
    return src.to(self.dtype, copy=True).reshape(self.shape)


@converts(aten.select_scatter.default)
def select_scatter(net: Net, input: Value, src: Value, dim: int, index: int) -> ITensor:
    """select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"""
    input, dim = base.tensor(net, input), base.axis(dim, base.rank(input))
    one = base.unsqueeze(net, base.tensor(net, src), [dim])
    if is_data_dependent(net, index):
        return index_put(net, input, [*[None] * dim, base.size_tensor(net, index)], one, False)
    start = slice_start(net, index, base.known_sizes(net, input)[dim])
    return _replace_range(net, input, one, dim, start, size_sum([start, 1]))


def _replace_range(net: Net, x: Any, source: Any, dim: int, start: Any, end: Any) -> Any:
    """Concatenate the part of ``x`` before ``start``, ``source``, and the part of ``x`` from ``end`` on."""
    size = base.known_sizes(net, x)[dim]
    rest = size_sum([size, negate(end)])
    before = [] if start == 0 else [narrow(net, x, dim, 0, start)]
    after = [] if rest == 0 else [narrow(net, x, dim, end, rest)]
    return concatenate(net, [*before, source, *after], dim, base.dtype_of(x))


@converts(aten.slice_scatter.default)
def slice_scatter(net: Net, input: Value, src: Value, dim: int, start: int | None, step: int) -> ITensor:
    """slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, …) -> Tensor"""
    input, dim = base.tensor(net, input), base.axis(dim, base.rank(input))
    src = base.tensor(net, src, base.dtype_of(input))
    start, count = slice_start(net, start, base.known_sizes(net, input)[dim]), base.known_sizes(net, src)[dim]
    if count == 0:
        return input
    if step == 1:
        return _replace_range(net, input, src, dim, start, size_sum([start, count]))
    return _scatter.scatter_along(net, input, dim, iota(net, [count], [step], start), src)


@converts(aten.diagonal_scatter.default)
def diagonal_scatter(net: Net, input: Value, src: Value, offset: int, dim1: int, dim2: int) -> ITensor:
    """diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor"""
    flat, order, sizes = flatten_dims(net, base.tensor(net, input), dim1, dim2)
    src = base.tensor(net, src, base.dtype_of(flat))
    count = base.known_sizes(net, src)[-1]
    if count == 0:
        return base.tensor(net, input)
    places = iota(net, [count], [size_sum([sizes[-1], 1])], diagonal_start(offset, sizes[-1]))
    written = _scatter.scatter_along(net, flat, len(sizes) - 2, places, src)
    return base.permute(net, base.reshape(net, written, sizes), [order.index(i) for i in range(len(order))])
