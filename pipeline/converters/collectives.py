"""Convert collectives of sharded programs to TensorRT layers, if the setting `collectives_in_engine` is set.
The ranks of one NCCL process group then exchange tensors inside their engines."""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import Node

from pipeline.aten.arguments import bind
from pipeline.aten.collectives import BETWEEN_ENGINES, follows_previous_collective, process_groups
from pipeline.converters.binding import CompilationSettings, Rejection, converts
from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Value
from pipeline.network.context import NetworkError
from pipeline.runtime.ranks import group_backend, group_ranks
from pipeline.trt import CAPABILITIES, LIBRARY, trt

ops = torch.ops._c10d_functional

ALL_REDUCE, ALL_GATHER = ops.all_reduce.default, ops.all_gather_into_tensor.default
REDUCE_SCATTER, WAIT = ops.reduce_scatter_tensor.default, ops.wait_tensor.default
REDUCTIONS: Final = {"sum": "SUM", "avg": "AVG", "product": "PROD", "min": "MIN", "max": "MAX"}
DTYPES: Final = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64})
"""The dtypes that both TensorRT's collective layer and NCCL support."""


def check_collective(node: Node, settings: CompilationSettings) -> bool | Rejection:
    """`collectives_in_engine` must be set, the group must use NCCL, and TensorRT must support dtype and reduction."""
    if not settings.collectives_in_engine:
        return Rejection(BETWEEN_ENGINES)
    if not CAPABILITIES.collectives:
        return Rejection(f"{LIBRARY} supports no collectives in engines: {BETWEEN_ENGINES}")
    groups = process_groups(node.graph.nodes)
    if len(groups) > 1:
        return Rejection(f"an engine supports one process group, and the program's collectives use {len(groups)}")
    if "nccl" not in (backend := group_backend(groups[0])):
        return Rejection(
            f"an engine's collectives need NCCL, and the process group's backend is {backend or 'unknown'}"
        )
    if not follows_previous_collective(node):
        return Rejection("it does not depend on the previous collective, so ranks may run the two in different orders")
    given, *others = bind(node.target, node.args, node.kwargs)
    value, reduction = given.meta["val"], "sum" if node.target is ALL_GATHER else str(others[0]).lower()
    if value.dtype not in DTYPES:
        return Rejection(f"TensorRT has no collectives for {str(value.dtype).removeprefix('torch.')} tensors")
    if reduction not in REDUCTIONS:
        return Rejection(f"TensorRT's collectives have no reduction {reduction!r}, only {', '.join(REDUCTIONS)}")
    if value.dim() == 0 and node.target is not ALL_REDUCE:
        return Rejection("TensorRT gathers and scatters along the first dim, which a 0-d tensor does not have")
    if [user.target for user in node.users] != [WAIT]:
        return Rejection("an engine needs exactly one wait_tensor per collective, and no other reader of its result")
    return True


def check_wait(node: Node, settings: CompilationSettings) -> bool | Rejection:
    """The collective must run in an engine, too: the one whose result ``wait_tensor`` waits for."""
    source = node.args[0]
    if isinstance(source, Node) and source.target in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER):
        return check_collective(source, settings)
    return Rejection(BETWEEN_ENGINES)


@converts(
    {ALL_REDUCE: "ALL_REDUCE", ALL_GATHER: "ALL_GATHER", REDUCE_SCATTER: "REDUCE_SCATTER"}, validator=check_collective
)
def collective(
    net: Net, operation: str, input: Value, group_name: str, reduce_op: str = "", group_size: int | None = None
) -> ITensor:
    """all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor (``operation`` ALL_REDUCE);
    reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group_name) -> Tensor (REDUCE_SCATTER)

    TensorRT's layer has no ranks: an engine gets its group's communicator at run time; all ranks' engines are equal.
    """
    reduction = REDUCTIONS[reduce_op.lower()] if reduce_op else "NONE"
    kinds = trt.CollectiveOperation.__members__[operation], trt.ReduceOperation.__members__[reduction]
    layer = net.add("dist_collective", base.tensor(net, input), *kinds, -1, None)
    layer.metadata = f"{operation} {reduction}"
    layer.num_ranks = len(group_ranks(group_name)) if group_size is None else group_size
    return layer.get_output(0)


@converts(WAIT, validator=check_wait)
def wait_tensor(net: Net, tensor: Value) -> Value:
    """wait_tensor(Tensor tensor) -> Tensor"""
    source = net.node.args[0]
    if not isinstance(source, Node) or source.name not in net.ctx.inside:
        raise NetworkError(f"wait_tensor is in an engine, but its collective {source} is not: put both into one engine")
    return tensor
