"""Compile PyTorch segments with torch.compile (`torch_compile`).

torch.compile writes and runs source code that it makes of a graph, so the graph of a file, which is data, runs operator
by operator instead.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.fx.node import map_aggregate

from pipeline.aten.calls import callee
from pipeline.aten.interpreter import Change
from pipeline.aten.kv_cache_ops import IN_PLACE
from pipeline.aten.op_predicates import draws_random, drops_nothing
from pipeline.aten.tensor_type import TensorType
from pipeline.aten.types import Leaf
from pipeline.errors import worded
from pipeline.program import Program, Segment

log = logging.getLogger(__name__)

Run = Callable[..., Sequence[Leaf]]
_done: WeakKeyDictionary[torch.fx.GraphModule, dict[object, Run]] = WeakKeyDictionary()
"""Compiled segments by the graph that they are of, since each module of a program has them."""
_lock = threading.Lock()


def compiled_segment(program: Program, segment: Segment, mode: str, argument: Change) -> Run | None:
    """Return a segment, compiled in a mode of torch.compile, as a function of its inputs and then its constants; None
    if it cannot be compiled. torch compiles it at the first call.

    argument: returns the replacement for a constant argument, such as a device.
    """
    if why := obstacle(program, segment):
        log.info("%s is not compiled by torch.compile: %s", segment.name, why)
        return None
    key = segment.nodes, segment.inputs, segment.outputs, mode, argument(torch.device("cpu"))
    with _lock:
        known = _done.setdefault(program.graph_module, {})
        if key not in known:
            module = torch.fx.GraphModule(torch.nn.Module(), _graph(program, segment, argument))
            known[key] = torch.compile(module, mode=mode, dynamic=False, fullgraph=True)
        return known[key]


def obstacle(program: Program, segment: Segment) -> str:
    """Return why a segment runs operator by operator; empty if it can be compiled."""
    nodes = {node.name: node for node in program.graph.nodes}
    inside = [nodes[name] for name in segment.nodes]
    reasons = {
        "sizes vary": len(program.shapes) > 0 or any(port.kind != "tensor" for port in segment.inputs),
        "the program was loaded from a file": any(isinstance(n.meta.get("val"), TensorType) for n in inside),
        "it has control flow": any(source.op == "get_attr" for node in inside for source in node.all_input_nodes),
        "it draws random numbers": any(draws_random(node) and not drops_nothing(node) for node in inside),
        "it updates a buffer in place": any(node.target in IN_PLACE for node in inside),
        "an operator of it has a form of its own": not all(map(_is_plain, inside)),
    }
    return next((why for why, found in reasons.items() if found), "")


def _is_plain(node: torch.fx.Node) -> bool:
    return node.target is operator.getitem or isinstance(callee(node.target), torch._ops.OpOverload)


def _graph(program: Program, segment: Segment, argument: Change) -> torch.fx.Graph:
    """Return a graph of the segment's nodes, whose placeholders are its inputs and its constants."""
    graph, made = torch.fx.Graph(), dict[str, torch.fx.Node]()
    for name in (*(port.name for port in segment.inputs), *segment.constants):
        made[name] = graph.placeholder(name)

    def moved(value: Any) -> Any:
        return made[value.name] if isinstance(value, torch.fx.Node) else argument(value)

    nodes = {node.name: node for node in program.graph.nodes}
    for node in map(nodes.__getitem__, segment.nodes):
        args, kwargs = map_aggregate(node.args, moved), map_aggregate(node.kwargs, moved)
        target = node.target if node.target is operator.getitem else callee(node.target)
        made[node.name] = graph.call_function(target, args, kwargs)
    graph.output(tuple(made[port.name] for port in segment.outputs))
    return graph


class OrInterpreted:
    """A compiled segment, and the interpreter that takes its place if torch.compile fails."""

    def __init__(self, name: str, run: Run, constants: Sequence[torch.Tensor], interpreter: Run) -> None:
        self.name, self.run, self.constants, self.interpreter = name, run, tuple(constants), interpreter
        self.failed = False

    def __call__(self, *inputs: Leaf) -> Sequence[Leaf]:
        """Return the segment's outputs."""
        if self.failed:
            return self.interpreter(*inputs)
        try:
            return self.run(*inputs, *self.constants)
        except Exception as error:  # of the compiler, of Triton or a C++ compiler that is missing, or of the call
            results = self.interpreter(*inputs)
            log.warning("torch.compile failed, and %s runs operator by operator: %s", self.name, worded(error))
            self.failed = True
            return results
