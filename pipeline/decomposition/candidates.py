"""List the functions that decompose an operator: registered ones, torch's, and torch's own composites; and check
that one returns tensors like its operator's: in number, dtype, rank and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from attrs import frozen

from pipeline.aten.types import Argument, Target
from pipeline.converters.decompositions import (
    DecompositionTable,
    Op,
    torch_enabled_decompositions,
    torch_whole_decompositions,
)
from pipeline.converters.matmul import known_as
from pipeline.records.wording import kind_of
from pipeline.shapes.environment import shape_of

Function: TypeAlias = Callable[..., Any]


@frozen
class Ways:
    """The functions that decompose operators: registered ones, or torch's, except those in ``disabled``."""

    registered: DecompositionTable
    disabled: frozenset[Op] = frozenset()

    def own(self, target: object) -> Function | None:
        """Return the registered decomposition of an operator; None if there is none."""
        return None if target in self.disabled else self.registered.get(known_as(target))

    def torchs(self, target: object) -> Function | None:
        """Return torch's decomposition of an operator, if it has one that we use; else None."""
        if not isinstance(target, torch._ops.OpOverload) or target in self.disabled:
            return None
        return _table()[target] if target in torch_enabled_decompositions else _composite(target)

    def apart(self, target: object) -> Iterator[Function]:
        """Yield every decomposition of an operator, to search it for a user's operator. Core ATen operators are not
        decomposed."""
        if isinstance(target, torch._ops.OpOverload) and torch.Tag.core not in target.tags:
            whole = target in torch_whole_decompositions and target not in self.disabled
            ways = (self.own(target), _table()[target] if whole else None, self.torchs(target))
            yield from filter(None, ways)


@lru_cache(1)
def _table() -> Mapping[Argument, Function]:
    table: Mapping[Any, Function] = torch._decomp.decomposition_table
    return table


def _composite(target: torch._ops.OpOverload[..., Target]) -> Function | None:
    """Return the operator itself, which torch's dispatcher decomposes, if it is a composite; else None."""
    name = target.name()
    kernel, key = torch._C._dispatch_has_kernel, "CompositeImplicitAutograd"
    return target if kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(name, key) else None


def check_results(made: Argument, expected: Argument) -> None:
    """Raise if a decomposition returns other tensors than its operator: in number, dtype, rank or size."""
    several = isinstance(expected, tuple | list)
    given, wanted = (made if isinstance(made, tuple | list) else [made]), (expected if several else [expected])
    if isinstance(made, tuple | list) != several or len(given) != len(wanted):
        raise RuntimeError(f"the decomposition returned {_shown(made)}; the operator returns {_shown(expected)}")
    for a, b in zip(given, wanted, strict=True):
        value = a.meta.get("val") if isinstance(a, torch.fx.Node) else a
        unused = value is None and several
        if isinstance(b, torch.Tensor) and not unused and not _alike(value, b):
            raise RuntimeError(f"the decomposition returned {_shown(value)}; the operator returns {_shown(b)}")


def _alike(value: object, expected: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != expected.dtype or value.dim() != expected.dim():
        return False
    sizes = zip(shape_of(value), shape_of(expected), strict=True)
    return all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} results"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return kind_of(value)
