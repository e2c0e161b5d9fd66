"""Building blocks for reductions over dims."""

from __future__ import annotations

from pipeline.aten.types import Function, Operator
from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call


def _as_list(dims: Argument) -> list[int]:
    """Return dims as the list that ATen's reductions expect; an empty list means all dims."""
    return [] if dims is None else [dims] if isinstance(dims, int) else list(dims)


amax = block(
    lambda input_val, dim=(), keepdim=False: call(aten.amax.default, input_val, _as_list(dim), keepdim),
    "aten.amax.default",
)
amin = block(
    lambda input_val, dim=(), keepdim=False: call(aten.amin.default, input_val, _as_list(dim), keepdim),
    "aten.amin.default",
)
sum = block(
    lambda input_val, dim, keepdim: call(aten.sum.dim_IntList, input_val, _as_list(dim), keepdim),
    "aten.sum.dim_IntList: of integers and bools int64",
)
mean = block(lambda input_val, dim, keepdim: call(aten.mean.dim, input_val, _as_list(dim), keepdim), "aten.mean.dim")
any = block(
    lambda input_val, dim=None, keepdim=False: call(aten.any.dims, input_val, _as_list(dim) or None, keepdim),
    "aten.any.dims",
)
all = block(
    lambda input_val, dim=None, keepdim=False: call(aten.all.dims, input_val, _as_list(dim) or None, keepdim),
    "aten.all.dims",
)


@block
def prod(input_val: Argument, dim: Argument, keepdim: bool) -> Expression:
    """Multiply the elements along each dim (aten.prod.dim_int), the last dim first; an empty ``dim`` means all dims."""
    if not _as_list(dim) and not keepdim:
        return call(aten.prod.default, input_val)
    rank = len(input_val.shape)
    made: Expression = input_val
    for each in sorted((d % rank for d in _as_list(dim) or range(rank)), reverse=True):
        made = call(aten.prod.dim_int, made, each, keepdim)
    return made


def _min_or_max_block(name: str, indexed_op: Operator, plain_op: Operator) -> Function:
    """Create the building block ``max`` or ``min``, of ``amax`` or, to return indices of one dim, ``max.dim``."""

    def extreme(input_val: Argument, dim: Argument, keepdim: bool, return_indices: bool) -> Expression:
        dims = _as_list(dim)
        if not return_indices:
            return call(plain_op, input_val, dims, keepdim)
        both = call(indexed_op, input_val, dims[0], keepdim) if len(dims) == 1 else None
        return [call(plain_op, input_val, dims, keepdim), None] if both is None else [both[0], both[1]]

    return block(extreme, f"aten.a{name}.default; with indices aten.{name}.dim, of one dim -> [values, indices]")


max = _min_or_max_block("max", aten.max.dim, aten.amax.default)
min = _min_or_max_block("min", aten.min.dim, aten.amin.default)
