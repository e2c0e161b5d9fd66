"""Decide whether a model carries state between calls: compare two calls of the model in one exported graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from attrs import define, field
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import TreeSpec, tree_leaves

from pipeline.aten.graphs import results_of
from pipeline.aten.op_predicates import mutates_argument
from pipeline.aten.own_ops import AGAIN
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument, Node

COPY_OPERATORS: Final = ("to", "_to_copy", "type_as", "contiguous", "clone", "detach", "alias")
"""Operators that change at most the device, memory layout or dtype of values."""


def is_second_call_equal(exported: ExportedProgram, output_structures: Sequence[TreeSpec]) -> bool:
    """Return whether the second of two calls computes the same function of its inputs as the first, and so uses no
    state that the first call left. The graph of ``exported`` calls the model twice, and returns the outputs of both
    calls, which have these two pytree structures; the operator `AGAIN` copies the inputs for the second call."""
    first, second = output_structures
    if first != second:
        return False
    signature = exported.graph_signature
    of_user = [spec.kind == OutputKind.USER_OUTPUT for spec in signature.output_specs]
    values = _ValueNumbers()
    values.number_nodes(
        exported.graph_module, {spec.arg.name: spec for spec in signature.input_specs}, exported.constants
    )
    both = [out for out, mine in zip(results_of(exported.graph), of_user, strict=True) if mine]
    count = first.num_leaves
    twice = [*map(values.key_of, both[count : 2 * count])]
    values.nodes |= values.first
    return [*map(values.key_of, both[:count])] == twice


@define
class _ValueNumbers:
    """Value numbering of a graph that calls a model twice: nodes with the same number compute the same value. If the
    outputs of both calls have the same numbers, the second call uses no state of the first (`is_second_call_equal`).

    Attributes:
        numbers: the number of each expression: an operator and the numbers of its arguments.
        nodes: the current number of each node; a write to the node changes it.
        input_dependent: the numbers of values that depend on inputs.
        registered: the initial number of each parameter's and buffer's placeholder.
        inputs: the number of each input's placeholder; both calls get the same inputs.
        first: a copy of ``nodes`` when all nodes of the first call are numbered; empty before.
    """

    numbers: dict[tuple[object, ...], int] = field(factory=dict)
    nodes: dict[Node, int] = field(factory=dict)
    input_dependent: set[int] = field(factory=set)
    registered: dict[Node, int] = field(factory=dict)
    inputs: dict[Node, int] = field(factory=dict)
    first: dict[Node, int] = field(factory=dict)

    def number_of(self, *key: object, of_input: bool = False) -> int:
        """Return an expression's number, a new one at first use. ``key``: its operator and its arguments' numbers;
        ``of_input``: whether its value depends on model inputs."""
        number = self.numbers.setdefault(key, len(self.numbers))
        if of_input:
            self.input_dependent.add(number)
        return number

    def key_of(self, argument: Argument) -> object:
        """Return the value number of a node; for any other argument, a key made of its type and text."""
        if isinstance(argument, Node):
            return self.nodes[argument]
        if isinstance(argument, list | tuple):
            return tuple(map(self.key_of, argument))
        if isinstance(argument, slice):
            return ("slice", *map(self.key_of, (argument.start, argument.stop, argument.step)))
        return f"{type(argument).__name__} {argument}"

    def number_nodes(
        self, module: torch.fx.GraphModule, input_specs: Mapping[str, Argument], constants: Mapping[str, Argument]
    ) -> None:
        """Number all nodes of ``module``, whose graph calls the model twice. ``input_specs``: torch's `InputSpec` s by
        the placeholder's name; ``constants``: the exported program's constants by name."""
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.number_placeholder(node, input_specs.get(node.name), constants)
            elif node.op == "get_attr":
                inner = module.get_submodule(str(node.target)).modules()
                graphs = [str(each.graph) for each in inner if isinstance(each, torch.fx.GraphModule)]
                self.nodes[node] = self.number_of("attribute", *graphs)
            elif node.target is AGAIN:
                if not self.first:
                    self.begin_second_call()
                source: Argument = node.args[0]
                self.nodes[node] = self.inputs.get(source, self.nodes[source])
            elif node.op == "call_function":
                self.number_call(node)

    def number_placeholder(self, node: Node, spec: Argument, constants: Mapping[str, Argument]) -> None:
        """Store the number of a placeholder, which ``spec`` (an `InputSpec`) describes: an input, parameter or buffer
        gets its own number, and constants of equal value share one. ``constants``: by name."""
        if spec.kind == InputKind.USER_INPUT:
            self.nodes[node] = self.inputs[node] = self.number_of("input", node.name, of_input=True)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            self.nodes[node] = self.registered[node] = self.number_of("registered", spec.target)
        else:
            self.nodes[node] = self.number_of("constant", _constant_key(constants.get(str(spec.target))))

    def begin_second_call(self) -> None:
        """Prepare for the second call: renumber values computed from inputs, so that the second call differs if it uses
        any; give buffers their initial numbers, since a program may keep state in buffers."""
        self.first = self.nodes
        self.nodes = {n: self.number_of("before", v) if v in self.input_dependent else v for n, v in self.nodes.items()}
        self.nodes.update(self.registered)

    def number_call(self, node: Node) -> None:
        """Number an operator call: equal operators and arguments, equal numbers. Renumber the nodes that it writes."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) and not free_unbacked_symbols(value):
            self.nodes[node] = self.number_of("size", str(value))
            return
        if _only_copies_input(node):
            self.nodes[node] = self.nodes[node.all_input_nodes[0]]
            return
        arguments = [self.key_of(node.args), *((name, self.key_of(each)) for name, each in sorted(node.kwargs.items()))]
        depends = any(self.nodes[each] in self.input_dependent for each in _inputs_read_by_value(node))
        self.nodes[node] = self.number_of(str(node.target), *arguments, of_input=depends)
        if mutates_argument(node):
            for written in _written_nodes(node):
                self.nodes[written] = self.number_of("written", self.nodes[written], self.nodes[node], of_input=depends)


def _inputs_read_by_value(node: Node) -> list[Node]:
    """Return the arguments of an operator call whose elements it reads, not only their dtype, device or sizes."""
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    template = 1 if name.endswith("_as") else 0 if name.startswith("new_") or name.endswith("_like") else None
    if template is None or (template == 0 and op_kind(node.target) is not Kind.FILLS):
        return node.all_input_nodes
    others = [arg for at, arg in enumerate(node.args) if at != template]
    return [each for each in tree_leaves((others, dict(node.kwargs))) if isinstance(each, Node)]


def _only_copies_input(node: Node) -> bool:
    """Return whether an operator call only copies its input: ``clone``, or a cast to the dtype that it already has."""
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if name not in COPY_OPERATORS or not node.all_input_nodes:
        return False
    both = [each.meta.get("val") for each in (node, node.all_input_nodes[0])]
    kinds = [(each.dtype, each.device) for each in both if isinstance(each, torch.Tensor)]
    return len(kinds) == 2 and kinds[0] == kinds[1]


def nodes_depending_on(graph: torch.fx.Graph, inputs: set[Node]) -> set[Node]:
    """Return ``inputs``, and nodes that depend on them or on what the graph writes to a parameter or buffer."""
    found = set(inputs)
    for node in graph.nodes:
        if not found.isdisjoint(_inputs_read_by_value(node)):
            found.add(node)
        if node.op == "call_function" and mutates_argument(node):
            written = [*_written_nodes(node)]
            found.update(written if node in found or written[-1].op != "call_function" else ())
    return found


def _written_nodes(node: Node) -> Iterator[Node]:
    """Yield the node that an in-place operator writes (its first input), then each node of which that may be a view."""
    written: object = next(iter(node.all_input_nodes), None)
    while isinstance(written, Node) and not isinstance(written.meta.get("val"), torch.SymInt | int):
        yield written
        written = written.args[0] if written.op == "call_function" and written.args else None


def _constant_key(value: object) -> tuple[object, ...]:
    """Return a key that is equal for two constants of equal value; each call of a model creates its literals anew."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return (id(value),)
    values = value.constant if isinstance(value, FakeTensor) else value
    known = b"" if values is None else values.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return (value.dtype, tuple(value.shape), known)
