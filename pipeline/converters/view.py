"""Views: the same elements under another shape, order or broadcast. The result's fake tensor says which shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import bind
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.converters.results import converts
from pipeline.impl import base
from pipeline.impl.shape import result_sizes
from pipeline.network.context import ConversionContext

aten, prims = torch.ops.aten, torch.ops.prims


@converts(
    aten.view.default,
    aten.reshape.default,
    aten._reshape_copy.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
)
def reshape(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """view(Tensor self, SymInt[] size) -> Tensor"""
    return base.reshape(ctx, name, base.tensor(ctx, name, args[0]), result_sizes(ctx))


@dynamo_tensorrt_converter(aten.permute.default, supports_dynamic_shapes=True)
def permute(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """permute(Tensor self, int[] dims) -> Tensor"""
    x, dims = bind(target, args, kwargs)
    return base.permute(ctx, name, base.tensor(ctx, name, x), dims)


@dynamo_tensorrt_converter(aten.transpose.int, supports_dynamic_shapes=True)
def transpose(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """transpose.int(Tensor self, int dim0, int dim1) -> Tensor"""
    x, dim0, dim1 = bind(target, args, kwargs)
    order = list(range(base.rank(x)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return base.permute(ctx, name, base.tensor(ctx, name, x), order)


@dynamo_tensorrt_converter(aten.t.default, supports_dynamic_shapes=True)
def t(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """t(Tensor self) -> Tensor"""
    x = base.tensor(ctx, name, args[0])
    return base.permute(ctx, name, x, range(base.rank(x))[::-1])


@dynamo_tensorrt_converter(aten.expand.default, supports_dynamic_shapes=True)
def expand(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """expand(Tensor self, SymInt[] size, *, bool implicit=False) -> Tensor"""
    return base.expand(ctx, name, base.tensor(ctx, name, args[0]), result_sizes(ctx))


@dynamo_tensorrt_converter(prims.broadcast_in_dim.default, supports_dynamic_shapes=True)
def broadcast_in_dim(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """broadcast_in_dim(Tensor a, SymInt[] shape, int[] broadcast_dimensions) -> Tensor"""
    x, shape, places = bind(target, args, kwargs)
    new = [i for i in range(len(shape)) if i not in places]
    return base.expand(ctx, name, base.unsqueeze(ctx, name, base.tensor(ctx, name, x), new), result_sizes(ctx))


@dynamo_tensorrt_converter(aten.unsqueeze.default, supports_dynamic_shapes=True)
def unsqueeze(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """unsqueeze(Tensor self, int dim) -> Tensor"""
    x, sizes = base.tensor(ctx, name, args[0]), result_sizes(ctx)
    if all(isinstance(s, int) for s in sizes):
        return base.reshape(ctx, name, x, sizes)
    return base.unsqueeze(ctx, name, x, [base.axis(bind(target, args, kwargs)[1], len(sizes))])


@converts(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """squeeze.dims(Tensor(a) self, int[] dim) -> Tensor. A dim that is dynamic is not of size 1, and stays."""
    x, sizes = base.tensor(ctx, name, args[0]), result_sizes(ctx)
    if all(isinstance(s, int) for s in sizes):
        return base.reshape(ctx, name, x, sizes)
    dims = bind(target, args, kwargs)[1:]
    named = range(base.rank(x)) if not dims else dims[0] if isinstance(dims[0], (list, tuple)) else dims
    known = base.known_sizes(ctx, x)
    return base.squeeze(ctx, name, x, sorted({base.axis(d, base.rank(x)) for d in named if known[d] == 1}))


COPIES = {
    aten.diagonal_copy.default: aten.diagonal.default,
    aten.expand_copy.default: aten.expand.default,
    aten.permute_copy.default: aten.permute.default,
    aten.select_copy.int: aten.select.int,
    aten.slice_copy.Tensor: aten.slice.Tensor,
    aten.split_with_sizes_copy.default: aten.split_with_sizes.default,
    aten.squeeze_copy.default: aten.squeeze.default,
    aten.squeeze_copy.dim: aten.squeeze.dim,
    aten.squeeze_copy.dims: aten.squeeze.dims,
    aten.t_copy.default: aten.t.default,
    aten.transpose_copy.int: aten.transpose.int,
    aten.unbind_copy.int: aten.unbind.int,
    aten.unfold_copy.default: aten.unfold.default,
    aten.unsqueeze_copy.default: aten.unsqueeze.default,
    aten.view_copy.default: aten.view.default,
}
"""A copy of a view is the view: nothing is written in place."""


def _view(copy: Any, view: Any) -> Callable[..., Any]:
    @register_torch_trt_decomposition(copy)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return decompose


DECOMPOSITIONS = [_view(copy, view) for copy, view in COPIES.items()]
