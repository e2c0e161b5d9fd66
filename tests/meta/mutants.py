"""The registry's own converters, each made wrong in one of eight ways: a table of classes of faults by families."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from attrs import frozen

from pipeline.aten.arguments import bind
from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base
from pipeline.network.context import ConversionContext
from pipeline.shapes.environment import shape_of

aten = torch.ops.aten

Arguments = dict[str, Any]
Change = Callable[[Arguments], Arguments]
Ending = Callable[[ConversionContext, str, Any, Any], Any]


@frozen
class Mutant:
    """A converter with a fault: its arguments changed, or its first result, or its input on the way in and out."""

    fault: str
    target: Any
    arguments: Change = dict
    result: Ending = lambda ctx, name, given, result: result
    through: torch.dtype | None = None
    kind: str = "values|converts"

    def converter(self) -> Any:
        """It, declared as the registry's own is."""
        support, *_ = DYNAMO_CONVERTERS.get_all_converters_with_target(self.target)

        @dynamo_tensorrt_converter(
            self.target, capability_validator=support.capability_validator, supports_dynamic_shapes=True
        )
        def convert(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> Any:
            node = ctx.node
            assert node is not None
            names = [a.name for a in target._schema.arguments]
            given, seen = (
                self.arguments(dict(zip(names, bind(target, *both), strict=True)))
                for both in ((args, kwargs), (node.args, node.kwargs))
            )
            if self.through is not None:
                given[names[0]] = self.cast(ctx, name, given[names[0]], self.through)
            ctx.node = _like(node, [*seen.values()])
            made = support.converter_implementation(ctx, target, [*given.values()], {}, name)
            ctx.node = node
            first, *others = made if isinstance(made, list | tuple) else [made]
            first = self.result(ctx, name, node.meta["val"], first)
            first = first if self.through is None else self.cast(ctx, name, first, _dtype(node))
            return type(made)([first, *others]) if isinstance(made, list | tuple) else first

        return convert

    @staticmethod
    def cast(ctx: ConversionContext, name: str, value: Any, dtype: torch.dtype) -> Any:
        """Whole numbers in another dtype, as if its range were enough."""
        if isinstance(value, list):
            return [Mutant.cast(ctx, name, each, dtype) for each in value]
        x = base.tensor(ctx, name, value)
        return base.cast(ctx, name, x, dtype) if base.dtype_of(x) in (torch.int32, torch.int64) else x


def _like(node: torch.fx.Node, args: list[Any]) -> Any:
    """What a converter reads of a node, with other arguments."""
    return SimpleNamespace(target=node.target, args=args, kwargs={}, meta=node.meta, users=node.users)


def _dtype(node: torch.fx.Node) -> torch.dtype:
    value = node.meta["val"]
    dtype: torch.dtype = (value if isinstance(value, torch.Tensor) else value[0]).dtype
    return dtype


def _rank(value: Any) -> int:
    return value.meta["val"].dim() if isinstance(value, torch.fx.Node) else base.rank(value)


def next_dim(dim: str, of: str = "self") -> Change:
    """The dim after the one that is meant."""

    def change(given: Arguments) -> Arguments:
        rank = max(_rank(given[of]), 1)
        return given | {dim: (given[dim] + 1) % rank}

    return change


def swapped(a: str, b: str) -> Change:
    return lambda given: given | {a: given[b], b: given[a]}


def always(name: str, value: Any) -> Change:
    return lambda given: given | {name: value}


def reordered(name: str) -> Change:
    """Paddings, the last first."""
    return lambda given: given | {name: [*reversed(given[name])]}


def as_dtype(dtype: torch.dtype) -> Ending:
    return lambda ctx, name, given, x: base.cast(ctx, name, x, dtype)


def of_rank_one(ctx: ConversionContext, name: str, given: Any, x: Any) -> Any:
    """Where a result has no dims, one."""
    return base.unsqueeze(ctx, name, x, [0]) if base.rank(x) == 0 else x


def baked(ctx: ConversionContext, name: str, given: Any, x: Any) -> Any:
    """Every dynamic size as one number."""
    value = given if isinstance(given, torch.Tensor) else given[0]
    sizes = [s if isinstance(s, int) else 3 for s in shape_of(value)]
    return base.reshape(ctx, name, x, sizes)


AXIS, DTYPE, CAST, RANK = "wrong axis", "wrong dtype", "dropped cast", "rank 0"
SWAP, PAD, IGNORED, BAKED = "swapped operands", "wrong padding", "ignored argument", "baked dim"

MUTANTS = (
    Mutant(AXIS, aten._softmax.default, next_dim("dim")),
    Mutant(AXIS, aten.sort.default, next_dim("dim")),
    Mutant(AXIS, aten.cumsum.default, next_dim("dim")),
    Mutant(AXIS, aten.index_select.default, next_dim("dim")),
    Mutant(DTYPE, aten.argmax.default, result=as_dtype(torch.int32), kind="converts"),
    Mutant(DTYPE, aten.isnan.default, result=as_dtype(torch.int32), kind="converts"),
    Mutant(DTYPE, aten.arange.default, result=as_dtype(torch.int32), kind="converts"),
    Mutant(DTYPE, aten._softmax.default, result=as_dtype(torch.float16), kind="converts"),
    Mutant(CAST, aten.sum.dim_IntList, through=torch.float32),
    Mutant(CAST, aten.sort.default, through=torch.int32),
    Mutant(CAST, aten.index_select.default, through=torch.int32),
    Mutant(CAST, aten.cat.default, through=torch.float32),
    Mutant(RANK, aten._softmax.default, result=of_rank_one, kind="converts"),
    Mutant(RANK, aten.sort.default, result=of_rank_one, kind="converts"),
    Mutant(RANK, aten.clone.default, result=of_rank_one, kind="converts"),
    Mutant(RANK, aten.tanh.default, result=of_rank_one, kind="converts"),
    Mutant(SWAP, aten.layer_norm.default, swapped("weight", "bias")),
    Mutant(SWAP, aten.matmul.default, swapped("self", "other")),
    Mutant(SWAP, aten.bitwise_left_shift.Tensor, swapped("self", "other")),
    Mutant(SWAP, aten.atan2.default, swapped("self", "other")),
    Mutant(PAD, aten.convolution.default, reordered("padding")),
    Mutant(PAD, aten.constant_pad_nd.default, reordered("pad")),
    Mutant(PAD, aten.reflection_pad2d.default, reordered("padding")),
    Mutant(PAD, aten.max_pool2d.default, reordered("padding")),
    Mutant(IGNORED, aten.topk.default, always("largest", True)),
    Mutant(IGNORED, aten.tril.default, always("diagonal", 0)),
    Mutant(IGNORED, aten.scatter_reduce.two, always("include_self", True)),
    Mutant(IGNORED, aten.upsample_bilinear2d.vec, always("align_corners", False)),
    Mutant(IGNORED, aten.leaky_relu.default, always("negative_slope", 0.01)),
    Mutant(BAKED, aten.permute.default, result=baked),
    Mutant(BAKED, aten.cat.default, result=baked),
    Mutant(BAKED, aten.index_select.default, result=baked),
    Mutant(BAKED, aten.constant_pad_nd.default, result=baked),
)
