"""Branches over as many rows as data says.

A branch that is not taken is computed as well, on as many rows as there are: ``if len(y): top = y.max()``. What fails
on too few has some more of zeros there. And two branches may leave different numbers of rows: data chooses how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from pipeline.aten.types import Argument, Target
from pipeline.frontend.branching.positions import name_of
from pipeline.frontend.known_numbers import number_of
from pipeline.shapes.environment import shape_of

Need: TypeAlias = tuple[int | None, int]
"""A dim, or None for all elements, and how many it must have at least."""

Untaken: TypeAlias = Callable[[], torch.SymInt]
"""Computes 1 if a branch is not taken, else 0."""

_NEEDS: Final = "max min amax amin aminmax argmax argmin median nanmedian mode topk kthvalue select"
NEEDS: Final = frozenset(_NEEDS.split())
"""Operators that fail on nothing, or on too few: reductions, some of which have no result then, and look-ups."""


def needs(func: Target, args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> Iterator[Need]:
    """How many elements an operator needs of its first argument."""
    name = name_of(func)
    if name not in NEEDS or not args or not isinstance(args[0], torch.Tensor) or not args[0].dim():
        return
    given = {argument.name: argument.default_value for argument in func._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | dict(kwargs)
    dim, number = given.get("dim"), given.get("index" if name == "select" else "k", 1)
    dims = [dim] if isinstance(dim, int) else dim
    if isinstance(number, int):
        least = _least(number) if name == "select" else number
        yield from ((each, least) for each in dims) if dims else ((None, least),)


def enough(
    func: Target, args: Sequence[Argument], kwargs: Mapping[str, Argument], untaken: Untaken
) -> tuple[Argument, ...]:
    """The arguments of an operator in a branch that may not be taken. Where it is not, zeros are added to the first, as
    many as the operator needs; where it is, none are, and too few are what they are outside of branches."""
    first: Argument = args[0] if args else None
    for dim, least in needs(func, args, kwargs):
        first = _with_zeros(first, dim, least, untaken)
    return (first, *args[1:]) if args else ()


def enough_to_index(tensor: torch.Tensor, index: Argument, untaken: Untaken) -> tuple[torch.Tensor, Argument]:
    """The same for ``tensor[index]``, which asks for the size before it calls an operator, and would read a position
    that is a tensor of one element."""
    parts, dim = list(index) if isinstance(index, tuple) else [index], 0
    places = [i for i, part in enumerate(parts) if _is_position(part)]
    alone = len(places) == 1 and not any(isinstance(p, torch.Tensor) for i, p in enumerate(parts) if i not in places)
    for i, part in enumerate(parts):
        if part is Ellipsis:
            dim = tensor.dim() - sum(map(_dims, parts[i + 1 :]))
            continue
        if isinstance(part, int) and not isinstance(part, bool):
            tensor = _with_zeros(tensor, dim, _least(part), untaken)
        elif alone and i in places:
            tensor = _with_zeros(tensor, dim, 1, untaken).index_select(dim, part.reshape(1))
            parts[i] = 0
        dim += _dims(part)
    return tensor, tuple(parts) if isinstance(index, tuple) else parts[0]


def _is_position(index: object) -> bool:
    """Whether a part of an index is a tensor of one position, which only data has."""
    if not isinstance(index, torch.Tensor) or index.dtype not in (torch.int64, torch.int32):
        return False
    return index.dim() == 0 and number_of(index) is None


def _with_zeros(tensor: torch.Tensor, dim: int | None, least: int, untaken: Untaken) -> torch.Tensor:
    sizes = tensor.shape if dim is None else (tensor.shape[dim],)
    if all(not free_unbacked_symbols(size) or statically_known_true(size >= least) for size in sizes):
        return tensor
    tensor, dim = (tensor.reshape(-1), 0) if dim is None else (tensor, dim % tensor.dim())
    zeros = tensor.new_zeros([*tensor.shape[:dim], least, *tensor.shape[dim + 1 :]])
    return torch.cat([tensor, torch.narrow(zeros, dim, 0, least * untaken())], dim)


def _least(position: int) -> int:
    """How many there must be for one to be at a position."""
    return position + 1 if position >= 0 else -position


def _dims(index: Argument) -> int:
    """How many dims a part of an index is for."""
    if index is None or isinstance(index, bool):
        return 0
    return index.dim() if isinstance(index, torch.Tensor) and index.dtype == torch.bool else 1


def counted_dim(yes: torch.Tensor, no: torch.Tensor) -> int | None:
    """The one dim in which two tensors differ; None if they do in another way, or do not."""
    if (yes.dtype, yes.device, yes.dim()) != (no.dtype, no.device, no.dim()):
        return None
    found = [dim for dim, (a, b) in enumerate(zip(shape_of(yes), shape_of(no), strict=True)) if a != b]
    return found[0] if len(found) == 1 else None


class Rows:
    """Chooses between tensors of different numbers of rows. Those of tensors that have as many are the same ones."""

    def __init__(self, test: Argument) -> None:
        self.test = test
        self._positions: dict[object, torch.Tensor] = {}

    def chosen(self, yes: torch.Tensor, no: torch.Tensor, dim: int) -> torch.Tensor:
        """The rows along a dim of one of two tensors."""
        both = (yes, self.test), (no, torch.logical_not(self.test))
        ways = [(each, test.to(each.device).reshape(1)) for each, test in both if _may_be(each, dim)]
        counts = tuple(shape_of(each)[dim] for each in (yes, no))
        if counts not in self._positions:
            there = torch.cat([test.expand(each.shape[dim]) for each, test in ways])
            self._positions[counts] = there.nonzero().reshape(-1)
        return torch.cat([each for each, _ in ways], dim).index_select(dim, self._positions[counts])


def _may_be(tensor: torch.Tensor, dim: int) -> bool:
    size = tensor.shape[dim]
    return not isinstance(size, int) or size > 0
