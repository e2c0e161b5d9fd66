"""Run a segment in PyTorch: its nodes as a graph module, on the device of the engines beside it.

It runs eagerly, on the current stream. It holds only the constants that its nodes read and the branches of its control
flow: weights that only engines use can be freed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

from pipeline.aten.cache import IN_PLACE
from pipeline.aten.layouts import ANY_LAYOUT
from pipeline.aten.types import Leaf
from pipeline.program import Program, Segment


def torch_segment(
    program: Program, segment: Segment, constant: Callable[[str], torch.Tensor], device: torch.device
) -> Callable[[list[Leaf]], Sequence[object]]:
    """Return a function from the segment's inputs to its outputs.

    constant: returns a constant of the program, by the name of its placeholder, on the device.
    """
    made = _Copy(program, device)
    for port in segment.inputs:
        made.env[port.name] = made.graph.placeholder(port.name)
    for name in segment.constants:
        made.root.register_buffer(name, constant(name), persistent=False)
        made.env[name] = made.graph.get_attr(name)
    nodes = {n.name: n for n in program.graph.nodes}
    for name in segment.nodes:
        made.node(nodes[name])
    made.graph.output([made.env[port.name] for port in segment.outputs])
    module = torch.fx.GraphModule(made.root, made.graph)
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            part.graph.owning_module = None  # else part and graph hold each other, and constants are freed late
    leaving = {output.value for output in program.outputs if not output.constant} - made.updated
    owned = frozenset(i for i, port in enumerate(segment.outputs) if port.name in leaving)
    constants = frozenset(map(_place_of, made.root.buffers(recurse=False)))

    def run(inputs: list[Leaf]) -> Sequence[Leaf]:
        results = tuple(module(*inputs))
        return _parted(results, inputs, owned, constants) if owned else results

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


class _Copy:
    """The copy of some nodes of a program, on a device. ``updated`` are those that are buffers, updated in place."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self.program, self.device = program, device
        self.graph, self.root = torch.fx.Graph(), torch.nn.Module()
        self.env: dict[str, torch.fx.Node] = {}
        self.updated: set[str] = set()

    def node(self, node: torch.fx.Node) -> torch.fx.Node:
        """Copy a node, after the numbers it reads that are not inputs of the segment."""
        if node.name not in self.env:
            if node.op == "get_attr":
                self.branch(str(node.target))
            self.env[node.name] = made = self.graph.node_copy(node, self.node)
            made.meta = {}
            _place(made, self.device)
            if node.target in IN_PLACE and getattr(node.args[0], "name", "") in self.program.buffers:
                made.target = IN_PLACE[node.target]  # type: ignore[assignment]  # nothing else reads the buffer: `improvements.update_in_place`
                self.updated.add(node.name)
        return self.env[node.name]

    def branch(self, name: str) -> None:
        """Take over a graph that control flow runs."""
        module = copy.deepcopy(self.program.graph_module.get_submodule(name))
        for graph_module in module.modules():
            if isinstance(graph_module, torch.fx.GraphModule):
                for node in graph_module.graph.nodes:
                    _place(node, self.device)
                graph_module.recompile()
        self.root.add_module(name, module.to(self.device))


def _place(node: torch.fx.Node, device: torch.device) -> None:
    """Make a node that names the example's device compute on this one, from inputs of any layout."""
    node.target = ANY_LAYOUT.get(node.target, node.target)
    node.args = tuple(device if isinstance(arg, torch.device) else arg for arg in node.args)
    node.kwargs = {name: device if isinstance(arg, torch.device) else arg for name, arg in node.kwargs.items()}
