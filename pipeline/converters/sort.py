"""Order: topk, sort, and the places of extrema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.impl import sort as _sort
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


def _largest(size: Any) -> float:
    """The largest value that a size may take."""
    if isinstance(size, torch.fx.Node):
        size = size.meta["val"]
    if not isinstance(size, torch.SymInt):
        return float(size)
    bound = size.node.shape_env.bound_sympy(size.node.expr).upper
    return float(bound) if bound.is_number else float("inf")


def k_up_to_3840(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """TensorRT's TopK takes k up to 3840."""
    k = argument(node, "k")
    return _largest(k) <= _sort.MAX_K or Rejection(f"k is {k}, TensorRT takes at most {_sort.MAX_K}")


def length_up_to_3840(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """A sort is a TopK of all elements, of which TensorRT takes up to 3840."""
    self, dim = argument(node, "self").meta["val"], argument(node, "dim")
    length = self.shape[dim] if self.dim() else 1
    if _largest(length) <= _sort.MAX_K:
        return True
    return Rejection(f"dim {dim} has up to {length} elements, TensorRT sorts at most {_sort.MAX_K}")


@dynamo_tensorrt_converter(aten.topk.default, capability_validator=k_up_to_3840, supports_dynamic_shapes=True)
def topk(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor, Tensor)"""
    self, k, dim, largest, _ = bind(target, args, kwargs)
    return _sort.topk(ctx, name, self, k, dim, largest)


@dynamo_tensorrt_converter(aten.sort.default, capability_validator=length_up_to_3840, supports_dynamic_shapes=True)
def sort(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    self, dim, descending = bind(target, args, kwargs)
    return _sort.sort(ctx, name, self, dim, descending, stable=False)


@dynamo_tensorrt_converter(aten.sort.stable, capability_validator=length_up_to_3840, supports_dynamic_shapes=True)
def sort_stable(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor, Tensor)"""
    self, stable, dim, descending = bind(target, args, kwargs)
    return _sort.sort(ctx, name, self, dim, descending, bool(stable))


def _extremum(target: Any, largest: bool) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        return _sort.extremum(ctx, name, largest, *bind(target, args, kwargs))

    convert.__doc__ = str(target._schema)
    return convert


def _index(target: Any, largest: bool) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        return _sort.index_of_extremum(ctx, name, largest, *bind(target, args, kwargs))

    convert.__doc__ = str(target._schema)
    return convert


CONVERTERS = [
    _extremum(aten.max.dim, largest=True),
    _extremum(aten.min.dim, largest=False),
    _index(aten.argmax.default, largest=True),
    _index(aten.argmin.default, largest=False),
]
