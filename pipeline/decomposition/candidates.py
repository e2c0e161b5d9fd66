"""List the functions that decompose an operator: registered ones, torch's, and torch's own composites."""

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
from pipeline.converters.grouped_mm import known_as

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
