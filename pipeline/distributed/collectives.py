"""Replace functions of torch.distributed while a sharded module is exported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Final

import torch.distributed
from torch._export import wrappers
from torch.distributed import _functional_collectives as functional
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from pipeline.aten.types import Argument, Function
from pipeline.export_fixes.patching import Patches, Replacement

IN_PLACE: Final = {
    "all_reduce": functional.all_reduce_inplace,
    "all_gather_into_tensor": functional.all_gather_tensor_inplace,
    "all_gather_single": functional.all_gather_tensor_inplace,
    "reduce_scatter_tensor": functional.reduce_scatter_tensor_inplace,
    "reduce_scatter_single": functional.reduce_scatter_tensor_inplace,
    "all_to_all_single": functional.all_to_all_inplace,
    "all_gather": functional.all_gather_inplace,
}
"""For each collective of torch.distributed that writes to a tensor: the functional collective that an export records in
its place, before a copy of the result to the tensor."""


def trace_collectives() -> AbstractContextManager[None]:
    """Return a context in which torch.export records collectives such as ``all_reduce`` as operators of the graph.
    Operators that DTensor runs for its own bookkeeping are not recorded."""
    return _export_patches("torch.distributed.tensor" in sys.modules).activate("sharded")


@cache
def _export_patches(_dtensor_is_imported: bool) -> Patches:
    """Return the patches of torch's functions for an export; DTensor's functions are patched only if it is imported."""
    why = "calls methods of a process group, which torch.export cannot capture: it captures operators only"
    rows = [
        Replacement(torch.distributed, n, partial(_call_functional, op), why, "sharded") for n, op in IN_PLACE.items()
    ]
    why = "fails at a DTensor that forward creates: its placements are not nodes"
    rows.append(Replacement(wrappers, "_emit_flat_apply_call", _do_nothing, why, "sharded"))
    modules = [each for name, each in sys.modules.items() if name.startswith("torch.distributed.tensor.")]
    why, name = "traces its own calls of an operator, the first time", "_propagate_tensor_meta_non_cached"
    owners = {vars(each)["ShardingPropagator"] for each in modules if "ShardingPropagator" in vars(each)}
    rows += [Replacement(each, name, _call_untraced, why, "sharded", before=(2, 13)) for each in owners]
    why = "limits the range of a dynamic size without need, in order to shard it"
    asking = [each for each in modules if "is_tensor_shardable" in vars(each)]
    return Patches((*rows, *(Replacement(each, "is_tensor_shardable", _can_shard, why, "sharded") for each in asking)))


def _do_nothing(_: Function, **__: object) -> None:
    """Do nothing, in place of a function that would add operators to the graph."""


def _call_untraced(original: Function, *args: Argument) -> object:
    """Call ``original`` without recording its operators in the graph of the export."""
    with disable_proxy_modes_tracing():
        return original(*args)


def _call_functional(collective: Argument, _original: Function, *args: Argument, **kwargs: Argument) -> None:
    """Call ``collective``, the functional one that replaces ``_original`` (see `IN_PLACE`), with the arguments for
    ``_original``. A ``ReduceOp`` among them becomes its name, such as "sum"."""
    names = functional.REDUCE_OP_TO_STR
    named = [names[each] if isinstance(each, torch.distributed.ReduceOp.RedOpType) else each for each in args]
    collective(*named, **{name: names.get(each, each) if name == "op" else each for name, each in kwargs.items()})


def _can_shard(original: Function, shape: Sequence[Argument], *args: Argument, **kwargs: Argument) -> object:
    """Call DTensor's ``is_tensor_shardable`` (``original``) with the lower bound of each dynamic size: a tensor that
    can be sharded at its smallest sizes can be sharded at all its sizes."""
    return original([_lower_bound(size) for size in shape], *args, **kwargs)


def _lower_bound(size: Argument) -> int:
    """Return the least value in the range of a dynamic size (``torch.SymInt``), or a static size itself."""
    node = getattr(size, "node", None)
    return size if node is None else int(node.shape_env.bound_sympy(node.expr).lower)
