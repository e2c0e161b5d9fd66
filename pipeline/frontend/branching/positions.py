"""What is known of tensors of positions: what they stay below, and which rows they can have.

``torch.where(mask)`` gives positions that are valid wherever there is a mask's element, whatever the mask has. A branch
that data may not choose can read and write there. ``for i in hit.nonzero()`` has at most as many turns as ``hit`` has
elements, each with a number that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import torch
from attrs import define, field
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from pipeline.aten.traits import PART, Does, does
from pipeline.aten.types import Argument, Target
from pipeline.frontend.known_numbers import number_of

aten = torch.ops.aten

Size: TypeAlias = int | torch.SymInt
Sizes: TypeAlias = tuple[Size, ...]

_ALONG: Final = "index_select index_add index_copy index_fill index_reduce gather scatter"
ALONG: Final = frozenset((*_ALONG.split(), "scatter_add", "scatter_reduce"))
"""Operators whose positions, their third argument, are along their second."""

AT: Final = frozenset(("index", "_unsafe_index", "index_put", "_unsafe_index_put", "_index_put_impl"))
"""Operators whose second argument is a list of positions, one for each of the first dims."""

ROWS: Final = (Does.COPIES, Does.CASTS, Does.RESHAPES, Does.SQUEEZES)
"""What leaves rows in their order."""


@define(frozen=True)
class Rows:
    """The rows that a tensor of as many rows as data says can have: the numbers from 0, in order, each one or none.

    Attributes:
        count: how many there can be.
        hit: which of them there are, a tensor of that many bools or numbers.
        source: what this is computed from.
    """

    count: int
    hit: Callable[[], torch.Tensor]
    source: torch.Tensor


@define
class Positions:
    """What is known of the tensors of one trace, until they are written."""

    _below: WeakIdKeyDictionary = field(factory=WeakIdKeyDictionary)
    _rows: WeakIdKeyDictionary = field(factory=WeakIdKeyDictionary)

    def note(self, func: Target, args: Sequence[Argument], kwargs: Mapping[str, Argument], result: Argument) -> None:
        """Note what is known of a call's result."""
        for made, sizes in zip(_tensors(result), self._sizes(func, args, kwargs, result), strict=False):
            if sizes:
                self._below[made] = sizes
        rows = self._known_rows(func, args)
        first = next(_tensors(result), None)
        if rows is not None and first is not None and _is_column(first):
            self._rows[first] = rows

    def forget(self, is_written: Callable[[torch.Tensor], bool]) -> None:
        """Forget what is known of memory that is written."""
        for tensor in [*self._below.keys()]:
            if is_written(tensor):
                del self._below[tensor]
        for tensor in [*self._rows.keys()]:
            if is_written(tensor) or is_written(self._rows[tensor].source):
                del self._rows[tensor]

    def rows(self, tensor: torch.Tensor) -> Rows | None:
        """The rows that a tensor can have; None if that is not known."""
        found: Rows | None = self._rows.get(tensor)
        return found

    def are_valid(self, func: Target, args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> bool:
        """Whether an operator reads and writes at positions that there are.

        Raises:
            IndexError: there is no such position, whatever the data.
        """
        valid = [self._is_valid(tensor, size) for tensor, size in _places(func, [*args, *kwargs.values()])]
        return bool(valid) and all(valid)

    def _is_valid(self, tensor: torch.Tensor, size: Size) -> bool:
        number = number_of(tensor)
        if isinstance(number, int) and isinstance(size, int) and not -size <= number < size:
            raise IndexError(f"index {number} is out of bounds for a dim of size {size}")
        below = self._bound(tensor)
        return tensor.dtype == torch.bool or (below is not None and statically_known_true(below <= size))

    def _bound(self, tensor: torch.Tensor) -> Size | None:
        """What all elements are below, if they are positions."""
        number, sizes = number_of(tensor), self._below.get(tensor, ())
        if isinstance(number, int) and number >= 0:
            return number + 1
        return sizes[0] if len(sizes) == 1 else None

    def _sizes(
        self, func: Target, args: Sequence[Argument], kwargs: Mapping[str, Argument], result: Argument
    ) -> Iterator[Sizes]:
        """For each tensor of a result, what its elements stay below, or its columns; nothing if that is not known."""
        name, first = name_of(func), args[0] if args else None
        if name == "arange":
            begins, ends, step = (0, *args, 1) if len(args) < 2 else (*args, 1)[:3]
            goes_up = all(isinstance(each, int) and each >= least for each, least in ((begins, 0), (step, 1)))
            yield (ends,) if goes_up else ()
        elif not isinstance(first, torch.Tensor):
            return
        elif name == "nonzero":
            yield tuple(first.shape)
        elif func is aten.where.default or name == "nonzero_numpy":
            yield from ((size,) for size in first.shape)
        elif name in ("topk", "sort", "argsort", "argmax", "argmin", "max", "min"):
            size = _along(func, args, kwargs)
            yield from ((), size) if isinstance(result, list | tuple) else (size,)
        elif name == "_unique2":
            yield self._below.get(first, ())
        elif does(func) in (*PART, Does.CASTS):
            yield from self._moved(func, args, result)

    def _moved(self, func: Target, args: Sequence[Argument], result: Argument) -> Iterator[Sizes]:
        """What is known of elements that an operator moves."""
        below = self._below.get(args[0], ())
        columns = args[0].dim() == 2 and len(args) > 1 and isinstance(args[1], int) and args[1] in (1, -1)
        for i, made in enumerate(_tensors(result)):
            if len(below) <= 1:
                yield below if not made.is_floating_point() else ()
            elif columns and func is aten.unbind.int:
                yield (below[i],)
            elif columns and func is aten.select.int:
                yield (below[args[2]],)

    def _known_rows(self, func: Target, args: Sequence[Argument]) -> Rows | None:
        name, first = name_of(func), args[0] if args else None
        if not isinstance(first, torch.Tensor):
            return None
        if func is aten.where.default or name in ("nonzero", "nonzero_numpy"):
            is_fixed = first.dim() == 1 and isinstance(first.shape[0], int)
            return Rows(int(first.shape[0]), lambda: first, first) if is_fixed else None
        if name == "_unique2":
            below = self._bound(first)
            if not isinstance(below, int) or first.dtype == torch.bool:
                return None
            return Rows(below, lambda: _has(first, below), first)
        return self._rows.get(first) if does(func) in ROWS or func is aten.select.int else None


def _has(tensor: torch.Tensor, below: int) -> torch.Tensor:
    """Which numbers below one a tensor has."""
    numbers = torch.arange(below, device=tensor.device, dtype=tensor.dtype)
    return (tensor.reshape(-1, 1) == numbers).any(0)


def name_of(func: Target) -> str:
    """``index_add`` for ``aten.index_add_.default``"""
    schema = func._schema.name if isinstance(func, torch._ops.OpOverload) else ""
    return str(schema.partition("::")[2].removesuffix("_"))


def _tensors(value: Argument) -> Iterator[torch.Tensor]:
    yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _is_column(tensor: torch.Tensor) -> bool:
    """Whether a tensor has as many elements as data says, one a row."""
    rows, *others = tensor.shape or (0,)
    is_open = isinstance(rows, torch.SymInt) and bool(free_unbacked_symbols(rows))
    is_whole = tensor.dtype in (torch.int64, torch.int32)
    return is_open and is_whole and all(isinstance(size, int) and size == 1 for size in others)


def _along(func: Target, args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> Sizes:
    """The size along which an operator looks."""
    given = {argument.name: argument.default_value for argument in func._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | dict(kwargs)
    dim, tensor = given.get("dim"), args[0]
    if dim is None and func in (aten.argmax.default, aten.argmin.default):
        return (tensor.numel(),)
    return (tensor.shape[dim],) if isinstance(dim, int) and tensor.dim() else ()


def _places(func: Target, args: Sequence[Argument]) -> Iterator[tuple[torch.Tensor, Size]]:
    """The tensors of positions of a call, with the sizes of the dims in which they are."""
    name, first, second = name_of(func), *(*args, None, None)[:2]
    if name in AT and isinstance(second, list | tuple):
        dim = 0
        for index in second:
            if index is not None:
                yield index, first.shape[dim]
            dim += index.dim() if index is not None and index.dtype == torch.bool else 1
    elif name in ALONG and len(args) > 2 and isinstance(second, int) and isinstance(args[2], torch.Tensor):
        yield args[2], first.shape[second] if first.dim() else 1
    elif name == "embedding":
        yield second, first.shape[0]
