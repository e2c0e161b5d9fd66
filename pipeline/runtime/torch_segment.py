"""A segment that runs in PyTorch: its nodes as a graph module of its own, on the device of the engines beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.program import Program, Segment


def torch_segment(
    program: Program, segment: Segment, parameters: Mapping[str, torch.Tensor], device: torch.device
) -> Callable[[list[Any]], Sequence[Any]]:
    """A function from the segment's inputs to its outputs. It keeps the constants that its nodes read."""
    nodes = {n.name: n for n in program.graph.nodes}
    graph = torch.fx.Graph()
    env: dict[str, torch.fx.Node] = {port.name: graph.placeholder(port.name) for port in segment.inputs}
    root = torch.nn.Module()
    for name, child in program.graph_module.named_children():
        root.add_module(name, child)
    for name in segment.constants:
        root.register_buffer(name, program.constants[name].evaluate(parameters).to(device), persistent=False)
        env[name] = graph.get_attr(name)
    for name in segment.nodes:
        env[name] = _copy(graph, nodes[name], env, device)
    graph.output([env[port.name] for port in segment.outputs])
    module = torch.fx.GraphModule(root, graph)

    def run(inputs: list[Any]) -> Sequence[Any]:
        return tuple(module(*inputs))

    return run


def _copy(
    graph: torch.fx.Graph, node: torch.fx.Node, env: dict[str, torch.fx.Node], device: torch.device
) -> torch.fx.Node:
    def argument(source: torch.fx.Node) -> torch.fx.Node:
        if source.name not in env:
            env[source.name] = _copy(graph, source, env, device)
        return env[source.name]

    copy = graph.node_copy(node, argument)
    if "device" in copy.kwargs:
        copy.kwargs = {**copy.kwargs, "device": device}
    return copy
