"""Compile PyTorch segments with torch.compile, if the setting `torch_compile` requests it.

torch.compile turns a graph into source code and runs it. A graph from a file is untrusted, so it is interpreted.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from attrs import evolve
from torch.fx.node import map_aggregate

from pipeline.aten.calls import safe_function
from pipeline.aten.collectives import is_collective
from pipeline.aten.interpreter import ReplaceConstant
from pipeline.aten.kv_cache_ops import IN_PLACE
from pipeline.aten.op_predicates import has_no_dropout, has_randomness
from pipeline.aten.own_ops import OPEN_MASK
from pipeline.aten.tensor_type import TensorType
from pipeline.aten.types import Leaf, aten
from pipeline.errors import error_text
from pipeline.program import Program, Segment, describe_value

log = logging.getLogger(__name__)

Run = Callable[..., Sequence[Leaf]]
_ZEROS = {
    aten.empty.memory_format: aten.zeros.default,
    aten.empty_like.default: aten.zeros_like.default,
    aten.new_empty.default: aten.new_zeros.default,
}
"""For each operator that returns new memory, the operator that fills it with zeros, as the interpreter does."""
_done: WeakKeyDictionary[torch.fx.GraphModule, dict[object, Run]] = WeakKeyDictionary()
"""The compiled segments of each graph, so that all modules of a program share them."""
_lock = threading.Lock()


def compile_segment(program: Program, segment: Segment, mode: str, replace_constant: ReplaceConstant) -> Run | None:
    """Return a segment as a function that torch.compile compiles, of the segment's inputs followed by its constants;
    None if it cannot be compiled. torch compiles at the first call, once for all segments that differ only in names.
    For a segment of an optimization profile, the first call's sizes are static; if a call has other sizes, torch
    compiles once more, with dynamic sizes.

    replace_constant: returns the value to use for a constant argument, such as the module's device for any device.
    """
    if why := compile_obstacle(program, segment):
        log.info("%s is not compiled by torch.compile: %s", segment.name, why)
        return None
    copied = _SegmentGraph(program, segment, replace_constant)
    key = copied.text, segment.profile, mode, replace_constant(torch.device("cpu"))
    with _lock:
        known = _done.setdefault(program.graph_module, {})
        if key not in known:
            module, dynamic = torch.fx.GraphModule(torch.nn.Module(), copied.graph), segment.profile is not None
            known[key] = torch.compile(module, mode=mode, dynamic=None if dynamic else False, fullgraph=True)
        return partial(_run_with_updated_inputs, known[key], copied.updated) if copied.updated else known[key]


def _run_with_updated_inputs(run: Run, updated_inputs: Sequence[int | None], *inputs: Leaf) -> Sequence[Leaf]:
    """Return a segment's outputs. ``run`` returns only those that it computes; the others are inputs that it updates in
    place. ``updated_inputs``: for each output the index of such an input, or None for the next result of ``run``."""
    results = iter(run(*inputs))
    return [next(results) if place is None else inputs[place] for place in updated_inputs]


def compile_obstacle(program: Program, segment: Segment) -> str:
    """Return the reason why a segment cannot be compiled and runs operator by operator; empty if it can be compiled."""
    nodes = {node.name: node for node in program.graph.nodes}
    inside = [nodes[name] for name in segment.nodes]
    varies = len(program.shapes) > 0 or any(port.kind != "tensor" for port in segment.inputs)
    reasons = {
        "sizes vary": varies and segment.profile is None,
        "the program was loaded from a file": any(isinstance(n.meta.get("val"), TensorType) for n in inside),
        "it has control flow": any(source.op == "get_attr" for node in inside for source in node.all_input_nodes),
        "it has collectives": any(map(is_collective, inside)),
        "it draws random numbers": any(has_randomness(node) and not has_no_dropout(node) for node in inside),
        "an operator of it has a form of its own": not all(map(_is_compilable_operator, inside)),
    }
    return next((why for why, found in reasons.items() if found), "")


def _is_compilable_operator(node: torch.fx.Node) -> bool:
    """Return whether torch.compile can compile a node's operator: `safe_function` replaces it by no Python function."""
    is_number = isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
    plain = node.target is operator.getitem or node.target in _ZEROS
    return plain or is_number or isinstance(safe_function(node.target), torch._ops.OpOverload)


class _SegmentGraph:
    """A copy of a segment's nodes as a graph whose placeholders are the segment's inputs and constants.

    text: the graph's code and the types of its placeholders; segments with equal texts share a compiled function.
    updated: for each output, the index of the input that is this output, since a node (such as a KV cache update)
        writes the result to the input; None for a computed output. Empty if no node does so.
    """

    def __init__(self, program: Program, segment: Segment, replace_constant: ReplaceConstant) -> None:
        self.program, self.replace_constant = program, replace_constant
        nodes = {node.name: node for node in program.graph.nodes}
        self.graph, self.made = torch.fx.Graph(), dict[str, torch.fx.Node]()
        self.places = {port.name: place for place, port in enumerate(segment.inputs)}
        self.written = dict[str, int]()
        for place, name in enumerate((*self.places, *segment.constants)):
            self.made[name] = self.graph.placeholder(f"x{place}")
        for name in segment.nodes:
            self._add_node(nodes[name])
        names = [port.name for port in segment.outputs]
        self.updated = [self.written.get(name) for name in names] if self.written else []
        self.graph.output(tuple(self.made[name] for name in names if name not in self.written))
        types = [evolve(port, name="").text() for port in segment.inputs]
        types += [describe_value(nodes[name].meta["val"]) for name in segment.constants]
        self.text = "\n".join([self.graph.python_code("self").src, *types])

    def _add_node(self, node: torch.fx.Node) -> None:
        """Add a node, after the computations of sizes that it reads and that are not inputs of the segment."""
        if node.name in self.made:
            return
        for source in node.all_input_nodes:
            self._add_node(source)
        if node.target is OPEN_MASK:
            self.made[node.name] = self._copy_argument(node.args[0])
            return
        call = safe_function(node.target)
        target: Any = call if isinstance(call, torch._ops.OpOverload) else node.target
        buffer = getattr(node.args[0], "name", "") if target in IN_PLACE else ""
        if buffer in self.program.buffers:
            target, self.written[node.name] = IN_PLACE[target], self.places[buffer]
        args = map_aggregate(node.args, self._copy_argument)
        kwargs = dict(map_aggregate(node.kwargs, self._copy_argument))
        if target is aten.empty.memory_format:
            kwargs.pop("memory_format", None)  # the layout changes no value, and zeros has none
        target = _ZEROS.get(target, target)
        self.made[node.name] = self.graph.call_function(target, args, kwargs)

    def _copy_argument(self, argument: Any) -> Any:
        """Return a copied node's argument: the copy of a node, or a constant as ``replace_constant`` returns it."""
        return self.made[argument.name] if isinstance(argument, torch.fx.Node) else self.replace_constant(argument)


class CompiledOrInterpreted:
    """A segment compiled by torch.compile; if that fails, an interpreter runs the segment operator by operator."""

    def __init__(self, name: str, run: Run, constants: Sequence[torch.Tensor], interpreter: Run) -> None:
        self.name, self.run, self.constants, self.interpreter = name, run, tuple(constants), interpreter
        self.failed = False

    def __call__(self, *inputs: Leaf) -> Sequence[Leaf]:
        if self.failed:
            return self.interpreter(*inputs)
        try:
            return self.run(*inputs, *self.constants)
        except Exception as error:  # of the compiler, of Triton or a C++ compiler that is missing, or of the call
            results = self.interpreter(*inputs)
            log.warning("torch.compile failed, so %s runs in eager PyTorch: %s", self.name, error_text(error))
            self.failed = True
            return results
