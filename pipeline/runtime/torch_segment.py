"""Run a segment in PyTorch: its nodes, step by step, on the device of the engines beside it.

It runs eagerly, on the current stream. It holds only the constants that its nodes read and the branches of its control
flow: weights that only engines use can be freed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from pipeline.aten.interpreter import Builder, held_by, placed
from pipeline.aten.kv_cache_ops import IN_PLACE
from pipeline.aten.types import Argument, Leaf
from pipeline.program import Program, Segment


def torch_segment(
    program: Program, segment: Segment, constant: Callable[[str], torch.Tensor], device: torch.device
) -> Callable[[list[Leaf]], Sequence[object]]:
    """Return a function from the segment's inputs to its outputs.

    constant: returns a constant of the program, by the name of its placeholder, on the device.
    """
    made = _Steps(program, segment, device)
    constants = {name: constant(name) for name in segment.constants}
    for name, value in constants.items():
        made.steps.constant(name, value)
    for name in segment.nodes:
        made.add(made.nodes[name])
    call = made.steps.built(tuple(made.nodes[port.name] for port in segment.outputs))
    leaving = {output.value for output in program.outputs if not output.constant} - made.updated
    owned = frozenset(i for i, port in enumerate(segment.outputs) if port.name in leaving)
    memory = frozenset(map(_place_of, constants.values()))

    def run(inputs: list[Leaf]) -> Sequence[Leaf]:
        results: Sequence[Leaf] = call(*inputs)
        return _parted(results, inputs, owned, memory) if owned else results

    return run


def _parted(
    results: Sequence[object], inputs: Sequence[object], owned: frozenset[int], constants: frozenset[int]
) -> Sequence[object]:
    """The results, of which those at ``owned`` share no memory with an input, a constant or one another: they leave the
    program, in whose graph a copy may have become a view. About 1 µs for each tensor."""
    seen = {*constants, *(_place_of(v) for v in inputs if isinstance(v, torch.Tensor))}
    parted = list(results)
    for i, result in enumerate(results):
        if isinstance(result, torch.Tensor) and result.numel():
            if i in owned and _place_of(result) in seen:
                parted[i] = result.clone()
            seen.add(_place_of(result))
    return parted


def _place_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


class _Steps:
    """The steps of some nodes of a program, on a device. ``updated`` are those that are buffers, updated in place."""

    def __init__(self, program: Program, segment: Segment, device: torch.device) -> None:
        self.program, self.device = program, device
        self.nodes = {node.name: node for node in program.graph.nodes}
        self.moved = partial(_moved, device)
        self.steps = Builder((port.name for port in segment.inputs), self.moved)
        self.updated: set[str] = set()

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of control flow in memory of the segment's own."""
        return tensor.detach().to(self.device, copy=True)

    def add(self, node: torch.fx.Node) -> None:
        """Add a node, after the numbers it reads that are not inputs of the segment."""
        if node.name in self.steps.places:
            return
        if node.op == "get_attr":
            graph = held_by(self.program.graph_module, str(node.target))
            self.steps.constant(node.name, placed(graph, self._copied, self.moved))
            return
        for source in node.all_input_nodes:
            self.add(source)
        target: Argument = node.target
        if target in IN_PLACE and getattr(node.args[0], "name", "") in self.program.buffers:
            target = IN_PLACE[target]  # nothing else reads the buffer: `improvements.update_in_place`
            self.updated.add(node.name)
        self.steps.call(node.name, target, node.args, node.kwargs)


def _moved(device: torch.device, value: object) -> object:
    """The segment's device in the place of the one that the example was on."""
    return device if isinstance(value, torch.device) else value
