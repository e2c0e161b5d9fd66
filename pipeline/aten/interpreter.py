"""Interpret a graph without generating Python source, so that no text in a graph is executed.

torch.fx runs a graph by generating source text from the names and arguments of its nodes, which is unsafe for graphs
from files. `Interpreter` instead assigns each value a slot in a list, which a call fills in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

import torch
from attrs import evolve, field, frozen
from torch.fx.node import map_aggregate, map_arg

from pipeline.aten.calls import safe_function
from pipeline.aten.types import Argument, Leaf

ReplaceConstant: TypeAlias = Callable[[Argument], Argument]
"""A function that returns the replacement for a constant argument, such as another device."""


def _identity(value: Argument) -> Argument:
    return value


@frozen(eq=False)
class Step:
    """One call of a function by an `Interpreter`, which keeps values in numbered slots. ``takes``: the slots of the
    positional arguments; ``constants``: keyword arguments with a fixed value; ``keywords``: (name, slot) of the other
    keyword arguments; ``drops``: the slots to clear after the call; ``node``: the node's name ("": a container)."""

    call: Callable[..., Argument]
    takes: tuple[int, ...]
    constants: Mapping[str, Argument]
    keywords: tuple[tuple[str, int], ...]
    result: int
    drops: tuple[int, ...] = ()
    node: str = ""


@frozen(eq=False)
class Interpreter:
    """A graph of operators as a function of its placeholders' values, in order. It keeps values in a list of slots:
    inputs, then ``template`` (constants, and None for results). ``returned``: the slot whose value a call returns."""

    count: int
    template: tuple[Argument, ...]
    steps: tuple[Step, ...]
    returned: int
    _rows: tuple[tuple[Argument, ...], ...] = field(init=False, repr=False)

    @_rows.default
    def _make_rows(self) -> tuple[tuple[Argument, ...], ...]:
        """Return the fields of each step as the tuple that `__call__` unpacks, which is faster than attributes."""
        return tuple((s.call, _slot_getter(s.takes), s.constants, s.keywords, s.result, s.drops) for s in self.steps)

    def __call__(self, *inputs: Leaf) -> Argument:
        """Run the graph and return its results in their original structure. If a step raises, a note names the node."""
        if len(inputs) != self.count:
            raise TypeError(f"the graph takes {self.count} inputs, but the call has {len(inputs)}")
        slots = [*inputs, *self.template]
        result = -1
        try:
            for call, takes, constants, keywords, result, drops in self._rows:
                kwargs = {**constants, **{name: slots[slot] for name, slot in keywords}} if keywords else constants
                slots[result] = call(*takes(slots), **kwargs)
                for slot in drops:
                    slots[slot] = None
        except Exception as error:
            node = next((step.node for step in self.steps if step.result == result), "")
            error.add_note(f"in node {node}" if node else "in the arguments of a node")
            raise
        return slots[self.returned]


def _slot_getter(indices: tuple[int, ...]) -> Callable[[list[Argument]], tuple[Argument, ...]]:
    """Return a function that takes the list of slots and returns the values at these indices as a tuple."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return (lambda slots: (slots[indices[0]],)) if indices else lambda slots: ()


class Builder:
    """Build an interpreter: add inputs first, then constants and calls in any order, each by the name of its graph
    node. ``replace`` returns the replacement for a constant argument, such as a device."""

    def __init__(self, inputs: Iterable[str], replace: ReplaceConstant = _identity) -> None:
        self.places = {name: place for place, name in enumerate(inputs)}
        self.count, self.argument = len(self.places), replace
        self.template: list[Argument] = []
        self.made: set[int] = set()
        self.steps: list[Step] = []

    def add_constant(self, name: str, value: object) -> None:
        """Add a named value that is the same in every call of the interpreter."""
        self.places[name] = self._new_slot(value)

    def add_call(self, name: str, target: Argument, args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> None:
        """Add a named call of an operator; nodes among its arguments stand for values that were added before."""
        self.places[name] = self._step(safe_function(target), args, kwargs, name)

    def build(self, results: Argument) -> Interpreter:
        """Return the interpreter; ``results`` contains nodes, constants, or containers of them."""
        returned = self._slot_of(results)
        read, steps = {returned}, list[Step]()
        for step in reversed(self.steps):
            places = {*step.takes, *(place for _, place in step.keywords), step.result}
            steps.append(evolve(step, drops=tuple(sorted((places - read) & self.made))))
            read |= places
        return Interpreter(self.count, tuple(self.template), tuple(reversed(steps)), returned)

    def _new_slot(self, value: object) -> int:
        """Add a slot with this initial value, and return its index."""
        self.template.append(value)
        return self.count + len(self.template) - 1

    def _step(self, call: Argument, args: Sequence[Argument], kwargs: Mapping[str, Argument], node: str = "") -> int:
        """Add a step that calls the function ``call``, and return the slot of its result."""
        takes, named = tuple(map(self._slot_of, args)), {name: self._slot_of(arg) for name, arg in kwargs.items()}
        moving = tuple((name, place) for name, place in named.items() if place < self.count or place in self.made)
        fixed = {name: self.template[named[name] - self.count] for name in named.keys() - dict(moving).keys()}
        result = self._new_slot(None)
        self.made.add(result)
        self.steps.append(Step(call, takes, fixed, moving, result, node=node))
        return result

    def _slot_of(self, value: Argument) -> int:
        """Return an argument's slot (index); add a `Step` that builds a list, dict or slice with nodes inside it."""
        if isinstance(value, torch.fx.Node):
            return self.places[value.name]
        nodes: list[torch.fx.Node] = []
        map_arg(value, nodes.append)
        if not nodes:
            return self._new_slot(map_aggregate(value, self.argument))
        if isinstance(value, slice):
            return self._step(slice, (value.start, value.stop, value.step), {})
        if isinstance(value, Mapping):
            keys = tuple(value)
            return self._step(lambda *parts: dict(zip(keys, parts, strict=True)), tuple(value.values()), {})
        kind = tuple if isinstance(value, tuple) else list
        return self._step(lambda *parts: kind(parts), tuple(value), {})


def make_interpreter(
    graph: torch.fx.Graph, attribute_at: Callable[[str], object], replace: ReplaceConstant = _identity
) -> Interpreter:
    """Return an `Interpreter` that runs a graph. ``attribute_at``: maps a path like ``layers.0.weight`` to a tensor, or
    to a subgraph's `Interpreter`. ``replace``: maps constant arguments, such as devices, to others."""
    made = Builder((node.name for node in graph.nodes if node.op == "placeholder"), replace)
    for node in graph.nodes:
        if node.op == "get_attr":
            made.add_constant(node.name, attribute_at(str(node.target)))
        elif node.op == "call_function":
            made.add_call(node.name, node.target, node.args, node.kwargs)
        elif node.op == "output":
            return made.build(node.args[0])
    raise AssertionError("the graph has no output node")


def get_attribute(module: torch.nn.Module, path: str) -> Argument:
    """Return the tensor or submodule at a dotted path below a module; raise an AttributeError if there is none."""
    *parents, name = path.split(".")
    for parent in parents:
        found = module._modules.get(parent)
        if found is None:
            raise AttributeError(f"the graph has no tensor or submodule {path[:80]!r}")
        module = found
    for kind in (module._modules, module._buffers, module._parameters, vars(module)):
        if isinstance(value := kind.get(name), (torch.nn.Module, torch.Tensor)):
            return value
    raise AttributeError(f"the graph has no tensor or submodule {path[:80]!r}")


def interpreter_of(
    module: torch.fx.GraphModule, tensor_of: Callable[[torch.Tensor], Argument], replace: ReplaceConstant
) -> Interpreter:
    """Convert the graph of a control-flow operator, and graphs nested in it, to an interpreter; ``tensor_of``
    returns the replacement for a tensor, and ``replace`` that for another constant, such as a device."""

    def attribute(path: str) -> object:
        item = get_attribute(module, path)
        return interpreter_of(item, tensor_of, replace) if isinstance(item, torch.fx.GraphModule) else tensor_of(item)

    return make_interpreter(module.graph, attribute, replace)
