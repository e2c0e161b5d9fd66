"""Choose the function that runs a collective: torch's operator, the operator on CPU copies, or a local substitute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from attrs import evolve
from torch.fx import Node

from pipeline.aten.collectives import is_collective, is_wait, process_groups
from pipeline.aten.types import Argument
from pipeline.compiled import Compiled
from pipeline.records.sharding import Alone, Sharding
from pipeline.runtime.ranks import collectives_run_on_host

_ops: Final = torch.ops._c10d_functional


ALONE: Final[Mapping[object, Callable[..., torch.Tensor]]] = {
    _ops.all_reduce.default: lambda x, *_: x.clone(),
    _ops.all_gather_into_tensor.default: lambda x, count, *_: torch.cat([x] * count),
    _ops.reduce_scatter_tensor.default: lambda x, _, count, *__: x[: len(x) // count].clone(),
    _ops.all_to_all_single.default: lambda x, sizes, *_: (
        x.new_zeros((sum(sizes), *x.shape[1:])) if sizes else x.clone()
    ),
    _ops.broadcast.default: lambda x, *_: x.clone(),
    _ops.wait_tensor.default: lambda x: x,
}
"""For each collective, a local function with results of the same shapes, for measuring a program on a single rank."""


def collective_function(node: Node, sharding: Sharding | None, device: torch.device) -> Argument:
    """Return the function that runs a collective on a device.

    The backend gloo needs CPU tensors, so GPU tensors are copied: `all_gather_into_tensor` of torch 2.11 would read GPU
    memory from the host and crash the process.
    """
    if isinstance(sharding, Alone):
        return ALONE[node.target]
    if device.type == "cuda" and any(map(collectives_run_on_host, process_groups([node]))):
        collective: Argument = node.target
        return lambda x, *args: _ops.wait_tensor(collective(x.cpu(), *args)).to(x.device)
    return node.target


def without_communication(compiled: Compiled) -> Compiled:
    """Return a copy of a program that can be measured without the other ranks: its collectives do not communicate."""
    sharding = compiled.program.sharding
    if sharding is None:
        return compiled
    program = evolve(compiled.program, sharding=Alone(sharding.rank, sharding.ranks))
    return evolve(compiled, partitioned=evolve(compiled.partitioned, program=program))


def runs_without_ranks(compiled: Compiled) -> bool:
    """Return whether a program can run without the other ranks: no engine has a collective."""
    calls = [node for node in compiled.program.graph.nodes if is_collective(node)]
    inside = {name for segment in compiled.partitioned.engine_segments for name in segment.nodes}
    return all(node.target in ALONE and node.name not in inside for node in calls)


def collectives_by_profile(compiled: Compiled) -> Mapping[int | None, Sequence[str]]:
    """Return a text for each collective that a call runs, in order, by the index of the call's optimization profile (by
    None if the program has no profiles)."""
    nodes = {node.name: node for node in compiled.program.graph.nodes if is_collective(node) and not is_wait(node)}
    calls: dict[int | None, list[str]] = {}
    for profile in range(len(compiled.program.profiles)) or (None,):
        chosen = (segment for segment in compiled.partitioned.segments if segment.runs_in(profile))
        inside = (nodes[name] for segment in chosen for name in segment.nodes if name in nodes)
        calls[profile] = [f"{node.target} {node.args[1:]}" for node in inside]
    return calls
