"""Results whose shape or value depends on data."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.aten.kinds import moves
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.converters.results import converts
from pipeline.impl import base
from pipeline.impl.index import index
from pipeline.impl.index import nonzero as _nonzero
from pipeline.impl.index_put import broadcast
from pipeline.impl.shape import sampled
from pipeline.network.context import ConversionContext, SymbolicInt
from pipeline.recipes import qualified_name
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import expression
from pipeline.trt import CAPABILITIES, LIBRARY

aten = torch.ops.aten

MASKS = (torch.bool, torch.uint8)
NO_NONZERO = Rejection(
    f"{LIBRARY} runs no NonZero layer, and how many elements there are is data",
    "use the tensorrt package, or torch.where, which keeps the shape",
)


def runs_nonzero(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The tensorrt package runs NonZero, tensorrt_rtx does not."""
    return CAPABILITIES.nonzero or NO_NONZERO


@dynamo_tensorrt_converter(
    aten.nonzero.default,
    capability_validator=runs_nonzero,
    supports_dynamic_shapes=True,
    requires_output_allocator=True,
)
def nonzero(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """nonzero(Tensor self) -> Tensor. An element of rank 0 has no coordinates, and may be there or not."""
    found = _nonzero(ctx, name, base.tensor(ctx, name, args[0], rank=1))
    found = found if base.rank(args[0]) else sampled(ctx, name, found, [0], [0], [0])
    return base.permute(ctx, name, found, [1, 0])


@dynamo_tensorrt_converter(
    aten.index.Tensor, capability_validator=runs_nonzero, supports_dynamic_shapes=True, requires_output_allocator=True
)
def index_by_mask(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor, for masks: the places where they hold are the indices."""
    x, indices = bind(target, args, kwargs)
    assert ctx.node is not None
    given: list[Any] = []
    for each, node in zip(indices, argument(ctx.node, "indices"), strict=True):
        if each is None or node.meta["val"].dtype not in MASKS:
            given.append(each)
        else:
            given += _places(ctx, name, each)
    return index(ctx, name, base.tensor(ctx, name, x), given)


def _places(ctx: ConversionContext, name: str, mask: Any) -> list[Any]:
    """For each dim of a mask, the coordinates where it holds."""
    found = _nonzero(ctx, name, mask)
    return [base.squeeze(ctx, name, found_at(ctx, name, found, i), [0]) for i in range(base.rank(mask))]


def found_at(ctx: ConversionContext, name: str, found: Any, dim: int) -> Any:
    """The row of coordinates of one dim."""
    layer = ctx.add(name, "gather", found, base.constant(ctx, name, torch.tensor([dim])), 0)
    return layer.get_output(0)


@dynamo_tensorrt_converter(
    aten.masked_select.default,
    capability_validator=runs_nonzero,
    supports_dynamic_shapes=True,
    requires_output_allocator=True,
)
def masked_select(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """masked_select(Tensor self, Tensor mask) -> Tensor"""
    x, mask = (base.tensor(ctx, name, value, rank=1) for value in bind(target, args, kwargs))
    sizes = broadcast(ctx, [x, mask])
    mask = base.expand(ctx, name, mask, sizes)
    return index(ctx, name, base.expand(ctx, name, x, sizes), _places(ctx, name, mask))


READERS: Mapping[Any, tuple[int, ...]] = {
    aten.select.int: (2,),
    aten.add.Tensor: (0, 1),
    aten.sub.Tensor: (0, 1),
    aten.mul.Tensor: (0, 1),
}
"""Operators that compute with a tensor as well as with a number, and the arguments for which they do."""

CHECKS = (
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    operator.ge,
    operator.le,
    operator.lt,
    operator.gt,
)


def _names_an_element(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """An int that is an index (``x[i]``), a factor or a term, but in no shape: those are computed on the host."""
    if not isinstance(node.meta["val"], (int, torch.SymInt)):
        return Rejection(f"{node.name} is a {type(node.meta['val']).__name__} that Python reads from a tensor")
    for user in node.users:
        if user.target in CHECKS:
            continue
        if not _reads(user, node):
            why = f"and {user.name} needs its value to be known"
            return Rejection(
                f"{node.name} is read by Python from what {_maker(node)} makes, {why}",
                "keep it a tensor: do not call item()",
            )
    return True


def _maker(node: torch.fx.Node) -> str:
    """What computes the tensor that a node reads a number from, in words."""
    source = node.all_input_nodes[0]
    while moves(source) or source.target is operator.getitem:
        source = source.all_input_nodes[0]
    return f"{source.name} ({qualified_name(source.target)})" if source.op == "call_function" else source.name


def _reads(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether a node's use of an int is one that a tensor serves as well."""
    places = [i for i, given in enumerate(user.args) if given is node]
    return bool(places) and not user.kwargs and set(places) <= set(READERS.get(user.target, ()))


@converts(aten._local_scalar_dense.default, aten.item.default, validator=_names_an_element)
def item(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """_local_scalar_dense(Tensor self) -> Scalar"""
    assert ctx.node is not None
    expr = expression(ctx.node.meta["val"])
    value = base.reshape(ctx, name, base.tensor(ctx, name, args[0], torch.int64), [])
    ctx.symbols[str(expr)] = (value, None)
    return expr if isinstance(expr, int) else SymbolicInt(expr)
