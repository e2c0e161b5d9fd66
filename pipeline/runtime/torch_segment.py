"""Run a segment eagerly in PyTorch, on the current stream and the device of the engines.

It holds only the constants that its nodes read and the branches of its control flow, so that weights that only engines
use can be freed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from pipeline.aten.collectives import is_collective
from pipeline.aten.interpreter import Builder, Change, held_by, placed
from pipeline.aten.kv_cache_ops import IN_PLACE
from pipeline.aten.types import Argument, Leaf
from pipeline.program import Program, Segment
from pipeline.runtime.call_plan import ON_CPU, SegmentRunner, Turn
from pipeline.runtime.collective_calls import called
from pipeline.runtime.compiled_segment import OrInterpreted, Run, compiled_segment

SDPA: Final = torch.ops.aten.scaled_dot_product_attention.default


def torch_segment(
    program: Program,
    segment: Segment,
    constant: Callable[[str], torch.Tensor],
    device: torch.device,
    mode: str | None = None,
) -> SegmentRunner:
    """Return a function from the segment's inputs to its outputs.

    constant: returns a constant of the program on the device, by the name of its placeholder. mode: that of
        torch.compile; None: each operator is called.
    """
    steps = _Steps(program, segment, device)
    constants = {name: constant(name) for name in segment.constants}
    for name, value in constants.items():
        steps.builder.constant(name, value)
    for name in segment.nodes:
        steps.add(steps.nodes[name])
    call: Run = steps.builder.built(tuple(steps.nodes[port.name] for port in segment.outputs))
    if mode is not None and (run_compiled := compiled_segment(program, segment, mode, steps.moved)) is not None:
        call = OrInterpreted(segment.name, run_compiled, tuple(constants.values()), call)
    leaving = {output.value for output in program.outputs if not output.constant} - steps.updated
    owned = frozenset(i for i, port in enumerate(segment.outputs) if port.name in leaving)
    memory = frozenset(map(_memory_of, constants.values()))

    def run(inputs: list[Leaf], turn: Turn = ON_CPU) -> Sequence[Leaf]:
        results: Sequence[Leaf] = call(*inputs)
        return _cloned_where_shared(results, inputs, owned, memory) if owned else results

    return run


def _cloned_where_shared(
    results: Sequence[object], inputs: Sequence[object], owned: frozenset[int], constants: frozenset[int]
) -> Sequence[object]:
    """Return the results; those at ``owned`` are outputs of the program, and cloned if they share memory with an input,
    a constant or another result: the graph may have a view where the model copies. About 1 µs for each tensor."""
    seen = {*constants, *(_memory_of(v) for v in inputs if isinstance(v, torch.Tensor))}
    cloned = list(results)
    for i, result in enumerate(results):
        if isinstance(result, torch.Tensor) and result.numel():
            if i in owned and _memory_of(result) in seen:
                cloned[i] = result.clone()
            seen.add(_memory_of(result))
    return cloned


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


class _Steps:
    """Build the steps of a segment's nodes. ``updated``: the nodes that update buffers in place."""

    def __init__(self, program: Program, segment: Segment, device: torch.device) -> None:
        self.program, self.device = program, device
        self.nodes = {node.name: node for node in program.graph.nodes}
        self.moved: Change = lambda value: device if isinstance(value, torch.device) else value
        self.builder = Builder((port.name for port in segment.inputs), self.moved)
        self.updated: set[str] = set()

    def add(self, node: torch.fx.Node) -> None:
        """Add a node, and before it the numbers it reads that are not inputs of the segment."""
        if node.name in self.builder.places:
            return
        if node.op == "get_attr":
            graph = held_by(self.program.graph_module, str(node.target))
            flow = placed(graph, lambda tensor: tensor.detach().to(self.device, copy=True), self.moved)
            self.builder.constant(node.name, flow)
            return
        for source in node.all_input_nodes:
            self.add(source)
        target: Argument = node.target
        if target in IN_PLACE and getattr(node.args[0], "name", "") in self.program.buffers:
            target = IN_PLACE[target]  # nothing else reads the buffer: `improvements.update_in_place`
            self.updated.add(node.name)
        if is_collective(node):
            target = called(node, self.program.sharding, self.device)
        if target is SDPA and self.device.type == "cuda":
            target = attention
        self.builder.call(node.name, target, node.args, node.kwargs)


def attention(
    query: Argument, key: Argument, value: Argument, attn_mask: Argument = None, *flags: Argument, **how: Argument
) -> torch.Tensor:
    """Return ``scaled_dot_product_attention`` on a GPU, where fewer heads of keys may serve several of queries.

    By torch's rules flash attention takes no mask, and the efficient kernel no groups of heads; where cuDNN's does not
    run, all products of queries and keys are written and read. So heads of keys are repeated; and a single query of
    each head is one of its group's.
    """
    heads, groups = query.shape[-3], key.shape[-3]
    if not how.get("enable_gqa") or attn_mask is None or heads == groups:
        return SDPA(query, key, value, attn_mask, *flags, **how)  # type: ignore[no-any-return]
    how["enable_gqa"] = False
    if query.shape[-2] != 1:
        keys, values = (tensor.repeat_interleave(heads // groups, -3) for tensor in (key, value))
        return SDPA(query, keys, values, attn_mask, *flags, **how)  # type: ignore[no-any-return]
    mask = _in_groups(attn_mask, groups) if attn_mask.dim() > 2 and attn_mask.shape[-3] == heads else attn_mask
    rows: torch.Tensor = SDPA(_in_groups(query, groups), key, value, mask, *flags, **how)
    return rows.reshape(*query.shape[:-1], value.shape[-1])


def _in_groups(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """Return one row for each head as rows of its group."""
    return rows.reshape(*rows.shape[:-3], groups, -1, rows.shape[-1])
