"""Writing elements by index, and reducing what falls on one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.converters.results import converts
from pipeline.impl import base
from pipeline.impl import scatter as _scatter
from pipeline.impl.index import iota
from pipeline.impl.shape import concatenate, negative, total
from pipeline.impl.slice import diagonal_start, first, flattened, narrow
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

MOST = (1 << 31) - 1
"""Elements that a tensor of TensorRT may have."""


@dynamo_tensorrt_converter(aten.scatter.value, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.scatter.src, supports_dynamic_shapes=True)
def scatter(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    x, dim, index, source = bind(target, args, kwargs)
    return _scatter.scatter(ctx, name, base.tensor(ctx, name, x), dim, index, source)


def compared(*sizes: Any) -> bool | Rejection:
    """Whether TensorRT takes a tensor of these sizes, in which every index is compared with every place."""
    count = math.prod(sizes) if all(isinstance(s, int) for s in sizes) else 0
    if count <= MOST:
        return True
    return Rejection(
        f"TensorRT's scatter does not reduce, and comparing every index with every place takes {count} elements, "
        f"of which a tensor has at most {MOST}"
    )


def _reducible(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Places times indices are at most 2**31 - 1, and the rank is at most 7: each place is compared with each index."""
    x, index = argument(node, "self").meta["val"], argument(node, "index").meta["val"]
    if x.dim() > 7:
        return Rejection("reduces into a tensor of rank 8, which takes one of rank 9", "flatten two of its dims")
    return compared(*x.shape, index.numel() if index.dim() < 2 else index.shape[argument(node, "dim")])


def _named_otherwise(given: Sequence[Any]) -> Sequence[Any]:
    return *given[:4], {"add": "sum", "multiply": "prod"}[given[4]], True


REDUCTIONS: Mapping[Any, Callable[[Sequence[Any]], Sequence[Any]]] = {
    aten.scatter_add.default: lambda given: (*given, "sum", True),
    aten.scatter_reduce.two: lambda given: given,
    aten.scatter.reduce: _named_otherwise,
    aten.scatter.value_reduce: _named_otherwise,
}
"""How the arguments of each are those of ``scatter_reduce.two``."""


@converts(*REDUCTIONS, validator=_reducible)
def scatter_reduce(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True)
    -> Tensor"""
    x, dim, index, source, reduction, include_self = REDUCTIONS[target](bind(target, args, kwargs))
    return _scatter_reduce(ctx, name, base.tensor(ctx, name, x), dim, index, source, reduction, include_self)


def _scatter_reduce(
    ctx: ConversionContext, name: str, x: Any, dim: int, index: Any, source: Any, reduction: str, include_self: bool
) -> Any:
    """With index and source as large as ``x`` in the other dims; places that are added name none."""
    sizes, own = base.known_sizes(ctx, base.tensor(ctx, name, x, rank=1)), base.rank(x)
    index = base.tensor(ctx, name, index, rank=1)
    given = base.known_sizes(ctx, index)
    if not isinstance(source, (int, float)) and base.rank(source) == 0:
        source = base.tensor(ctx, name, source, rank=1)
    source = _scatter.like(ctx, name, source, given, base.dtype_of(x))
    dim = base.axis(dim, len(sizes))
    full = [given[i] if i == dim else s for i, s in enumerate(sizes)]
    index, source = _scatter.grown(ctx, name, index, full, -1), _scatter.grown(ctx, name, source, full, 0)
    result = _scatter.scatter_reduce(
        ctx, name, base.tensor(ctx, name, x, rank=1), dim, index, source, reduction, include_self
    )
    return base.reshape(ctx, name, result, []) if own == 0 else result


@dynamo_tensorrt_converter(aten.index_copy.default, supports_dynamic_shapes=True)
def index_copy(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"""
    x, dim, index, source = bind(target, args, kwargs)
    x, source = base.tensor(ctx, name, x), base.tensor(ctx, name, source)
    if base.rank(x) == 0:
        return base.reshape(ctx, name, source, [])
    index = base.tensor(ctx, name, index, rank=1)
    return _scatter.along(ctx, name, x, base.axis(dim, base.rank(x)), index, source)


@dynamo_tensorrt_converter(aten.index_reduce.default, capability_validator=_reducible, supports_dynamic_shapes=True)
def index_reduce(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True)
    -> Tensor"""
    x, dim, index, source, reduction, include_self = bind(target, args, kwargs)
    x, source = base.tensor(ctx, name, x), base.tensor(ctx, name, source)
    if base.rank(x) == 0:
        return _scatter_reduce(ctx, name, x, dim, index, source, reduction, include_self)
    dim, index = base.axis(dim, base.rank(x)), base.tensor(ctx, name, index, rank=1)
    column = base.reshape(ctx, name, index, [-1 if i == dim else 1 for i in range(base.rank(x))])
    return _scatter.scatter_reduce(ctx, name, x, dim, column, source, reduction, include_self)


@dynamo_tensorrt_converter(aten.select_scatter.default, supports_dynamic_shapes=True)
def select_scatter(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"""
    x, source, dim, index = bind(target, args, kwargs)
    x, dim = base.tensor(ctx, name, x), base.axis(dim, base.rank(x))
    start = first(ctx, index, base.known_sizes(ctx, x)[dim])
    one = base.unsqueeze(ctx, name, base.tensor(ctx, name, source), [dim])
    return _between(ctx, name, x, one, dim, start, total([start, 1]))


def _between(ctx: ConversionContext, name: str, x: Any, source: Any, dim: int, start: Any, end: Any) -> Any:
    """``source`` with what ``x`` has before and after it."""
    size = base.known_sizes(ctx, x)[dim]
    rest = total([size, negative(end)])
    before = [] if start == 0 else [narrow(ctx, name, x, dim, 0, start)]
    after = [] if rest == 0 else [narrow(ctx, name, x, dim, end, rest)]
    return concatenate(ctx, name, [*before, source, *after], dim, base.dtype_of(x))


@dynamo_tensorrt_converter(aten.slice_scatter.default, supports_dynamic_shapes=True)
def slice_scatter(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1)
    -> Tensor"""
    x, source, dim, start, _, step = bind(target, args, kwargs)
    x, dim = base.tensor(ctx, name, x), base.axis(dim, base.rank(x))
    source = base.tensor(ctx, name, source, base.dtype_of(x))
    start, count = first(ctx, start, base.known_sizes(ctx, x)[dim]), base.known_sizes(ctx, source)[dim]
    if count == 0:
        return x
    if step == 1:
        return _between(ctx, name, x, source, dim, start, total([start, count]))
    return _scatter.along(ctx, name, x, dim, iota(ctx, name, [count], [step], start), source)


@dynamo_tensorrt_converter(aten.diagonal_scatter.default, supports_dynamic_shapes=True)
def diagonal_scatter(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor"""
    x, source, offset, dim1, dim2 = bind(target, args, kwargs)
    flat, order, sizes = flattened(ctx, name, base.tensor(ctx, name, x), dim1, dim2)
    source = base.tensor(ctx, name, source, base.dtype_of(flat))
    count = base.known_sizes(ctx, source)[-1]
    if count == 0:
        return base.tensor(ctx, name, x)
    places = iota(ctx, name, [count], [total([sizes[-1], 1])], diagonal_start(offset, sizes[-1]))
    written = _scatter.along(ctx, name, flat, len(sizes) - 2, places, source)
    return base.permute(ctx, name, base.reshape(ctx, name, written, sizes), [order.index(i) for i in range(len(order))])
