"""Convert operators whose result has a data-dependent shape, and operators that read a size from a tensor."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.op_predicates import moves_elements
from pipeline.converters.binding import CompilationSettings, Rejection, argument, aten, converts
from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, SymbolicInt, Value
from pipeline.impl.index import index, take
from pipeline.impl.index import nonzero as _nonzero
from pipeline.impl.index_put import broadcast_sizes
from pipeline.impl.shape import strided_slice
from pipeline.recipes import qualified_name
from pipeline.records.wording import kind_of
from pipeline.shapes.environment import expression
from pipeline.trt import CAPABILITIES, LIBRARY

MASKS = (torch.bool, torch.uint8)
NO_NONZERO = Rejection(
    f"{LIBRARY} has no NonZero layer, and the result has a data-dependent number of elements",
    "use the tensorrt package, or torch.where, whose result has the shape of its input",
)


def check_nonzero(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The tensorrt package must be used, since tensorrt_rtx has no NonZero layer."""
    return CAPABILITIES.nonzero or NO_NONZERO


@converts(aten.nonzero.default, validator=check_nonzero, requires_output_allocator=True)
def nonzero(net: Net, input: Value) -> ITensor:
    """nonzero(Tensor self) -> Tensor. For a 0-d tensor, the result has 0 or 1 row without columns."""
    found = _nonzero(net, base.tensor(net, input, rank=1))
    found = found if base.rank(input) else strided_slice(net, found, [0], [0], [0])
    return base.permute(net, found, [1, 0])


@converts(aten.nonzero_numpy.default, aten.where.default, validator=check_nonzero, requires_output_allocator=True)
def nonzero_numpy(net: Net, *operands: Value) -> list[Any]:
    """nonzero_numpy(Tensor self) -> Tensor[]; where(Tensor condition) -> Tensor[]. Return coordinates per dim."""
    return _mask_coordinates(net, base.tensor(net, operands[0], rank=1))


@converts(aten.index.Tensor, validator=check_nonzero, requires_output_allocator=True)
def index_by_mask(net: Net, input: Value, indices: Sequence[Value | None]) -> ITensor:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor; a mask becomes the coordinates of its true elements."""
    given: list[Any] = []
    for each, node in zip(indices, argument(net.node, "indices"), strict=True):
        if each is None or node.meta["val"].dtype not in MASKS:
            given.append(each)
        else:
            given += _mask_coordinates(net, each)
    return index(net, base.tensor(net, input), given)


def _mask_coordinates(net: Net, mask: Any) -> list[Any]:
    """Return, for each dim of a mask, the coordinates of the mask's true elements."""
    found = _nonzero(net, mask)
    rows = (take(net, found, torch.tensor([dim]), 0) for dim in range(base.rank(mask)))
    return [base.squeeze(net, row, [0]) for row in rows]


@converts(aten.masked_select.default, validator=check_nonzero, requires_output_allocator=True)
def masked_select(net: Net, input: Value, mask: Value) -> ITensor:
    """masked_select(Tensor self, Tensor mask) -> Tensor"""
    x, mask = (base.tensor(net, value, rank=1) for value in (input, mask))
    sizes = broadcast_sizes(net, [x, mask])
    mask = base.expand(net, mask, sizes)
    return index(net, base.expand(net, x, sizes), _mask_coordinates(net, mask))


READERS: Mapping[Any, tuple[int, ...]] = {
    aten.select.int: (2,),
    aten.select_scatter.default: (3,),
    aten.add.Tensor: (0, 1),
    aten.sub.Tensor: (0, 1),
    aten.mul.Tensor: (0, 1),
}
"""Operators that accept a tensor instead of a number, with the indices of the arguments that may be tensors."""

CHECKS = (
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    operator.ge,
    operator.le,
    operator.lt,
    operator.gt,
)


def _check_item(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The number must be an int used as an index (``x[i]``), a factor or a term, and no shape may depend on it."""
    if not isinstance(node.meta["val"], (int, torch.SymInt)):
        return Rejection(f"{node.name} is {kind_of(node.meta['val'])} that Python reads from a tensor: expected an int")
    for user in node.users:
        places = {i for i, given in enumerate(user.args) if given is node}
        reads = places and not user.kwargs and places <= {*READERS.get(user.target, ())}
        if user.target not in CHECKS and not reads:
            reason = f"Python reads {node.name} from the result of {_describe_producer(node)}"
            hint = "use the tensor instead of its item()"
            return Rejection(f"{reason}, and {user.name} needs this number in Python", hint)
    return True


def _describe_producer(node: torch.fx.Node) -> str:
    """Describe, for an error message, the node that computed the tensor from which ``node`` reads a number."""
    source = node.all_input_nodes[0]
    while moves_elements(source) or source.target is operator.getitem:
        source = source.all_input_nodes[0]
    return f"{source.name} ({qualified_name(source.target)})" if source.op == "call_function" else source.name


@converts(aten._local_scalar_dense.default, aten.item.default, validator=_check_item)
def item(net: Net, input: Value) -> Any:
    """_local_scalar_dense(Tensor self) -> Scalar"""
    expr = expression(net.node.meta["val"])
    value = base.reshape(net, base.tensor(net, input, torch.int64), [])
    net.ctx.symbols[str(expr)] = (value, None)
    return expr if isinstance(expr, int) else SymbolicInt(expr)
