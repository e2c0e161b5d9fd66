"""Find the operators that must run only in the branch that is taken: an engine computes both branches, then selects."""

from __future__ import annotations

from typing import Final

import torch

from pipeline.aten.traits import Does, does
from pipeline.aten.types import Argument, Target

_BY_POSITIONS: Final = """
    index _unsafe_index index_select gather take take_along_dim embedding embedding_bag _embedding_bag
    _embedding_bag_forward_only scatter scatter_add scatter_reduce index_put _unsafe_index_put index_copy index_fill
    index_add index_reduce put one_hot bincount _index_put_impl
"""
BY_POSITIONS: Final = frozenset(_BY_POSITIONS.split())
"""Operators that read or write at positions that a tensor holds."""

_DIVIDES: Final = frozenset(("div", "floor_divide", "remainder", "fmod"))


def why_apart(target: Target, args: Argument, value: object, *, undone: bool = False) -> str:
    """Return the reason why a call must not run unless its branch is taken; empty if it may.

    Args:
        target: the operator.
        args: its arguments: nodes, or tensors.
        value: its result, which may be fake.
        undone: the call writes only to memory that the branch itself allocated.
    """
    schema = target._schema if isinstance(target, torch._ops.OpOverload) else None
    name = "" if schema is None else schema.name.partition("::")[2].removesuffix("_")
    kind = does(target)
    if kind is Does.DRAWS and not _is_inference_dropout(target, args):
        return "draws random numbers"
    if schema is not None and (not schema.returns or (schema.is_mutable and not undone)):
        return "has an effect"
    if kind is Does.READS and not name.startswith("sym_") and not isinstance(value, int | float):  # a known number
        return "reads data"
    if name in BY_POSITIONS and not _indexes_by_mask(args):
        return "reads or writes at indices that may be valid only in this branch"
    if name in _DIVIDES and _divides_by_integer_data(args, value):
        return "divides by integers that may be 0 if another branch is taken"
    return ""


def _indexes_by_mask(args: Argument) -> bool:
    """Return whether the positions are those where a boolean mask is true: ``x[mask] = 0``."""
    places = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    values = [place.meta.get("val") if isinstance(place, torch.fx.Node) else place for place in places]
    return bool(values) and all(isinstance(v, torch.Tensor) and v.dtype == torch.bool for v in values)


def _is_inference_dropout(target: Target, args: Argument) -> bool:
    """Return whether a dropout is in inference mode."""
    names = [argument.name for argument in target._schema.arguments]
    at = names.index("train") if "train" in names else len(args)
    return len(args) > at and args[at] is False


def _divides_by_integer_data(args: Argument, value: object) -> bool:
    by_data = isinstance(args[1], torch.fx.Node | torch.Tensor)
    return by_data and isinstance(value, torch.Tensor) and not value.is_floating_point()
