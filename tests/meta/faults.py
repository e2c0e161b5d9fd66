"""Converters as a user writes them, each with a fault that can be planted: right without it, wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from attrs import frozen
from hypothesis import strategies as st

from pipeline.aten.arguments import bind
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base, elementwise
from pipeline.shapes.environment import shape_of
from pipeline.testing import Call, Size
from pipeline.testing.strategies.common import (
    Draw,
    broadcast_shapes,
    dim_lists,
    floats,
    name_sizes,
    shapes,
    strategy,
    tensors,
)
from pipeline.trt import trt

aten = torch.ops.aten


@frozen
class Fault:
    """``plant(True)`` gives the wrong converter, ``plant(False)`` the right one; ``kind`` is how the fault shows."""

    name: str
    kind: str
    plant: Callable[[bool], Any]
    message: str = ""
    strategy: Any = None
    dynamic: bool | None = None


def wrong_axis(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.amax.default, supports_dynamic_shapes=True)
    def amax(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        x, dims, keepdim = bind(target, args, kwargs)
        axes = base.axes_mask([abs(d) % base.rank(x) for d in dims] if fault else dims, base.rank(x))
        return ctx.add(name, "reduce", x, trt.ReduceOperation.MAX, axes, keepdim).get_output(0)

    return amax


@strategy(aten.amax.default)
def _maxima(draw: Draw, target: Any) -> Call:
    shape = draw(shapes(1, 4, with_zero=False))
    call = Call(
        target, (draw(tensors(shape, draw(floats))), draw(dim_lists(len(shape), min_size=1)), draw(st.booleans()))
    )
    return draw(name_sizes(call))


def rank_zero(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.sum.default, supports_dynamic_shapes=True)
    def total(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        if base.rank(args[0]) == 0 and not fault:
            return ctx.add(name, "identity", args[0]).get_output(0)
        axes = base.axes_mask(range(base.rank(args[0])), base.rank(args[0]))
        return ctx.add(name, "reduce", args[0], trt.ReduceOperation.SUM, axes, False).get_output(0)

    return total


@strategy(aten.sum.default)
def _totals(draw: Draw, target: Any) -> Call:
    return draw(name_sizes(Call(target, (draw(tensors(draw(shapes()), torch.float32)),))))


def wrong_dtype(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.eq.Tensor, supports_dynamic_shapes=True)
    def eq(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        result = elementwise.compare(ctx, name, "EQUAL", *args)
        return base.cast(ctx, name, result, torch.int32) if fault else result

    return eq


def dropped_cast(fault: bool) -> Any:
    """Comparing with a float makes an int tensor float; here the number becomes an int instead."""

    @dynamo_tensorrt_converter(aten.ge.Scalar, supports_dynamic_shapes=True)
    def ge(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        x, number = args
        if fault and not base.dtype_of(x).is_floating_point:
            number = int(number)
        less = elementwise.compare(ctx, name, "LESS", x, number)
        result = elementwise.logical_not(ctx, name, less)
        if not base.dtype_of(x).is_floating_point:
            return result
        is_number = elementwise.compare(ctx, name, "EQUAL", x, x)
        return base.elementwise(ctx, name, "AND", result, is_number)

    return ge


def no_promotion(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.mul.Tensor, supports_dynamic_shapes=True)
    def mul(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        if not fault:
            return elementwise.binary(ctx, name, "PROD", *args)
        rank = max(map(base.rank, args))
        a, b = (base.tensor(ctx, name, a, rank=rank) for a in args)
        return base.elementwise(ctx, name, "PROD", a, b)

    return mul


def swapped_operands(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.sub.Tensor, supports_dynamic_shapes=True)
    def sub(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        a, b, alpha = bind(target, args, kwargs)
        scaled = elementwise.binary(ctx, name, "PROD", b, alpha, base.result_type(a, b))
        return elementwise.binary(ctx, name, "SUB", *((scaled, a) if fault else (a, scaled)))

    return sub


def ignored_argument(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.clamp.default, supports_dynamic_shapes=True)
    def clamp(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        x, low, high = bind(target, args, kwargs)
        return elementwise.clamp(ctx, name, x, low, None if fault and low is not None else high)

    return clamp


def lost_nan(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.relu.default, supports_dynamic_shapes=True)
    def relu(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        x = args[0]
        negative = elementwise.compare(ctx, name, "LESS", x, 0)
        positive = elementwise.compare(ctx, name, "GREATER", x, 0)
        if fault:
            return elementwise.where(ctx, name, positive, x, 0, base.dtype_of(x))
        return elementwise.where(ctx, name, negative, 0, x, base.dtype_of(x))

    return relu


def wrong_padding(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.avg_pool2d.default, supports_dynamic_shapes=True)
    def avg_pool2d(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        x, kernel, _, padding, _, include, _ = bind(target, args, kwargs)
        layer = ctx.add(name, "pooling_nd", x, trt.PoolingType.AVERAGE, tuple(kernel))
        layer.padding_nd = (padding[1], padding[0]) if fault else tuple(padding)
        layer.stride_nd = tuple(kernel)
        layer.average_count_excludes_padding = not include
        return layer.get_output(0)

    return avg_pool2d


@strategy(aten.avg_pool2d.default)
def _pools(draw: Draw, target: Any) -> Call:
    """Images whose sides leave the same number of windows wherever the padding goes, so that only values can tell."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), 6, 6)
    padding = draw(st.sampled_from([[0, 0], [1, 0], [0, 1], [1, 1]]))
    x = draw(tensors(shape, draw(floats)))
    return draw(name_sizes(Call(target, (x, [4, 4], [4, 4], padding, False, draw(st.booleans()))), {0: [0]}))


def baked_shape(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.clone.default, supports_dynamic_shapes=True)
    def clone(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        if not fault:
            return ctx.add(name, "identity", args[0]).get_output(0)
        hints = [int(d) if isinstance(d, int) else 3 for d in shape_of(ctx.node.meta["val"])]
        return base.reshape(ctx, name, args[0], hints)

    return clone


def baked_size(fault: bool) -> Any:
    """The mean as a sum over a number of elements that is right for one size."""

    @dynamo_tensorrt_converter(aten.mean.dim, supports_dynamic_shapes=True)
    def mean(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        x, dims, keepdim, _ = bind(target, args, kwargs)
        axes = base.axes_mask(dims, base.rank(x))
        if not fault:
            return ctx.add(name, "reduce", x, trt.ReduceOperation.AVG, axes, keepdim).get_output(0)
        total = ctx.add(name, "reduce", x, trt.ReduceOperation.SUM, axes, keepdim).get_output(0)
        number = 1
        for d in dims:
            size = ctx.node.args[0].meta["val"].shape[d]
            number *= size if isinstance(size, int) else size.node.hint
        return elementwise.binary(ctx, name, "DIV", total, float(number), base.dtype_of(x))

    return mean


@strategy(aten.mean.dim)
def _means(draw: Draw, target: Any) -> Call:
    shape = draw(shapes(1, 3, with_zero=False))
    call = Call(
        target, (draw(tensors(shape, torch.float32)), [draw(st.integers(0, len(shape) - 1))], draw(st.booleans()))
    )
    return draw(name_sizes(call))


def wrong_broadcast(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.maximum.default, supports_dynamic_shapes=True)
    def maximum(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        a, b = (base.tensor(ctx, name, x) for x in args)
        if fault and base.rank(b) < base.rank(a):
            b = base.unsqueeze(ctx, name, b, range(base.rank(b), base.rank(a)))
        return elementwise.extremum(ctx, name, "MAX", a, b)

    return maximum


def not_deterministic(fault: bool) -> Any:
    numbers = count()

    @dynamo_tensorrt_converter(aten.neg.default, supports_dynamic_shapes=True)
    def neg(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        inner = f"{name}/{next(numbers)}" if fault else name
        return elementwise.binary(ctx, inner, "PROD", args[0], -1, base.dtype_of(args[0]))

    return neg


def dynamic_arithmetic(fault: bool) -> Any:
    """A view whose sizes are computed from the wrong place."""

    @dynamo_tensorrt_converter(aten.view.default, supports_dynamic_shapes=True)
    def view(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        x, size = args
        size = [*reversed(size)] if fault else size
        return base.reshape(ctx, name, x, size)

    return view


@strategy(aten.view.default)
def _views(draw: Draw, target: Any) -> Call:
    x = draw(tensors(("n", "m", 2), draw(floats)))
    return Call(target, (x, [Size("m"), Size("n", 2)]), sizes={"n": 3, "m": 2})


@strategy(aten.where.self)
def _selections(draw: Draw, target: Any) -> Call:
    shapes3, dtype = draw(broadcast_shapes(3)), draw(floats)
    condition, a, b = (tensors(s, d) for s, d in zip(shapes3, (torch.bool, dtype, dtype), strict=True))
    return draw(name_sizes(Call(target, (draw(condition), draw(a), draw(b)))))


def swapped_branches(fault: bool) -> Any:
    @dynamo_tensorrt_converter(aten.where.self, supports_dynamic_shapes=True)
    def where(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        condition, a, b = args
        return elementwise.where(ctx, name, condition, *((b, a) if fault else (a, b)))

    return where


FAULTS = (
    Fault("wrong axis", "values|converts", wrong_axis, strategy=_maxima[aten.amax.default]),
    Fault("rank 0", "converts", rank_zero, "at least 1 dim", strategy=_totals[aten.sum.default]),
    Fault("wrong dtype", "converts", wrong_dtype, "dtype torch.int32, expected torch.bool"),
    Fault("dropped cast", "values", dropped_cast),
    Fault("no promotion", "converts", no_promotion, "type"),
    Fault("swapped operands", "values", swapped_operands),
    Fault("swapped branches", "values", swapped_branches, strategy=_selections[aten.where.self]),
    Fault("ignored argument", "values", ignored_argument),
    Fault("lost NaN", "values", lost_nan, "eager gives nan"),
    Fault("wrong padding", "values|converts", wrong_padding, strategy=_pools[aten.avg_pool2d.default]),
    Fault("baked shape", "converts", baked_shape, "dimension 0 must be", dynamic=True),
    Fault("baked size", "values", baked_size, strategy=_means[aten.mean.dim], dynamic=True),
    Fault("wrong broadcast", "converts", wrong_broadcast),
    Fault("not deterministic", "deterministic", not_deterministic, "two conversions differ"),
    Fault("wrong size", "values", dynamic_arithmetic, strategy=_views[aten.view.default], dynamic=True),
)
