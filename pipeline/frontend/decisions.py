"""Take the way of the example where a model decides by data in Python, and have each call checked.

torch computes the example beside its symbols (``propagate_real_tensors``), answers what only data can, and asserts the
answer in the graph. Here each such assertion becomes an output of the program: whether a call decides otherwise. Sizes
that data has are asked of the tensor that has them, when the program runs.
"""

from __future__ import annotations

import linecache
import operator
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, TypeAlias

import torch
from attrs import define, evolve, field
from sympy.logic.boolalg import BooleanAtom
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
from torch.utils._pytree import tree_leaves

from pipeline.aten.counts import SIZE
from pipeline.aten.graphs import copied_node, over, results
from pipeline.aten.naming import origin, unlike
from pipeline.aten.types import Argument, Target
from pipeline.errors import CaptureError, folder_of
from pipeline.frontend.dynamic_shapes import is_input
from pipeline.frontend.replacement import Kernel
from pipeline.program import Output, Program

aten = torch.ops.aten

Node: TypeAlias = torch.fx.Node

NOT_THE_MODELS: Final = (folder_of("torch"), folder_of("pipeline"), "<")
HINT: Final = (
    "compare the number itself, without float(): `if x.mean() > 0.1`; torch.where(condition, one, other) has both ways"
)

READS: Final = (aten.item.default, aten._local_scalar_dense.default)

COMPARES: Final[Mapping[Target, Target]] = {
    getattr(operator, name): getattr(aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
COMPUTES: Final[Mapping[Target, Target]] = {
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.floordiv: aten.floor_divide.default,
    operator.mod: aten.remainder.Tensor,
    torch.sym_min: aten.minimum.default,
    torch.sym_max: aten.maximum.default,
}
JOINS: Final[Mapping[Target, Target]] = {operator.and_: aten.logical_and.default, operator.or_: aten.logical_or.default}
"""Operators on numbers, and those on tensors of one element."""


@define
class Decisions:
    """What was decided by the example while a model was traced.

    Attributes:
        places: where, in the model, for each symbol that was decided on: ``model.py:41, if x.sum() > 0:``.
        exact: places where a number that is no whole one was fixed.
        numbers: the functions, with their lines, that took a number for what it is in the example.
    """

    places: dict[str, str] = field(factory=dict)
    exact: dict[str, None] = field(factory=dict)
    numbers: list[tuple[CodeType, int]] = field(factory=list)


_decisions: ContextVar[Decisions | None] = ContextVar("decisions by the example", default=None)


@contextmanager
def collected() -> Iterator[Decisions]:
    """A context that collects what is decided by the example."""
    found = Decisions()
    token = _decisions.set(found)
    try:
        yield found
    finally:
        _decisions.reset(token)


def has_values(*inputs: object) -> bool:
    """Whether the example has values to decide by: no `Input` stands for a tensor."""
    return not any(map(is_input, tree_leaves(inputs, is_leaf=is_input)))


def computing(own: Kernel) -> Kernel:
    """Wrap `FakeTensorMode.__init__`: the mode computes the example as well."""

    def init(mode: FakeTensorMode, **options: Argument) -> None:
        own(mode, **options)
        mode.propagate_real_tensors, mode.cache_enabled = True, False
        mode.fake_tensor_converter = FakeTensorConverter(copy_data=True, export=bool(options.get("export")))

    return init


def noting(_: Kernel) -> Kernel:
    """Replace `ShapeEnv._log_real_tensor_propagation`, which logs what the example decides: note it."""

    def note(_: object, asked: Argument, answer: Argument) -> None:
        decisions = _decisions.get()
        if decisions is None:
            return
        frame = _models(sys._getframe(1))
        place = _place(frame)
        for symbol in sorted(asked.free_symbols, key=str):
            decisions.places.setdefault(str(symbol), place)
        if not isinstance(answer, bool | BooleanAtom):
            decisions.numbers += [] if frame is None else [(frame.f_code, frame.f_lineno)]
            if not asked.is_integer:
                decisions.exact[place] = None

    return note


def _models(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the model's."""
    while frame is not None and frame.f_code.co_filename.startswith(NOT_THE_MODELS):
        frame = frame.f_back
    return frame


def _place(frame: FrameType | None) -> str:
    """Where a frame of the model's is."""
    if frame is None:
        return "the model"
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(file).name}:{line}, {linecache.getline(file, line).strip()}".rstrip(", ")


def checked(program: Program, decisions: Decisions) -> Program:
    """The program with an output for each place that decides: whether a call decides otherwise.

    Raises:
        CaptureError: the program would hold for one number of a type that has many, or cannot check what was decided.
    """
    if decisions.exact:
        place = next(iter(decisions.exact))
        raise CaptureError(f"Python has a number of data at {place}: a program would be for this number alone", HINT)
    found = dict[str, list[Node]]()
    for node in program.graph.nodes:
        place = _decided(node, decisions) if node.target is aten._assert_scalar.default else None
        if place is not None:
            found.setdefault(place, []).append(node.args[0])
    if not found:
        return program
    copy = _Copy(program.graph)
    made = [copy.otherwise(conditions) for conditions in found.values()]
    module = over(program.graph_module, copy.returning(made))
    outputs = [Output(n.name, "decision", target=place) for n, place in zip(made, found, strict=True)]
    return evolve(program, graph_module=module, outputs=(*program.outputs, *outputs))


_SYMBOL: Final = re.compile(r"\bz?uf?\d+\b")


def _decided(node: Node, decisions: Decisions) -> str | None:
    """The place that decided what an assertion says; None if it says what always holds."""
    message = str(node.args[1])
    names = _SYMBOL.findall(message)
    place = next((decisions.places[name] for name in names if name in decisions.places), None)
    return None if not isinstance(node.args[0], Node) or re.search(r"expression \w+ [<>]=", message) else place


class _Copy:
    """A copy of a graph, with tensors in place of numbers that Python has read."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph, self.env = torch.fx.Graph(), dict[Node, Node]()
        self.results = results(graph)
        self.names = {node.name for node in graph.nodes}
        for node in graph.nodes:
            if node.op != "output":
                self.env[node] = copied_node(node, self.graph, self.env.__getitem__)
        self.mode = next(v.fake_mode for n in graph.nodes for v in tree_leaves(n.meta.get("val")) if _is_fake(v))

    def returning(self, more: Sequence[Node]) -> torch.fx.Graph:
        """The graph, which returns more."""
        self.graph.output((*torch.fx.node.map_arg(self.results, self.env.__getitem__), *more))
        return self.graph

    def otherwise(self, conditions: Sequence[Argument]) -> Node:
        """Whether one of the conditions does not hold: a bool tensor without dims."""
        found = [self.emit(aten.logical_not.default, torch.bool, like, self.value(c)) for c in conditions for like in (c,)]
        made = found[0]
        for other in found[1:]:
            made = self.emit(aten.logical_or.default, torch.bool, conditions[0], made, other)
        return made

    def emit(self, target: Target, dtype: torch.dtype, like: Argument, *args: Argument) -> Node:
        """A call whose result is a tensor without dims."""
        made = self.graph.call_function(target, args)
        made.name = unlike("decided", self.names)
        device = next((a.meta["val"].device for a in args if isinstance(a, torch.fx.Node)), torch.device("cpu"))
        with self.mode:
            made.meta = {**origin(like.meta), "val": torch.empty((), dtype=dtype, device=device)}
        return made

    def value(self, number: Argument) -> Argument:
        """A number as a tensor without dims; a constant as it is."""
        if not isinstance(number, Node):
            return number
        target, args = number.target, number.args
        if target in READS:
            return self._read(number, args[0])
        if target is aten.sym_size.int:
            return self.emit(SIZE, torch.int64, number, self.env[args[0]], args[1])
        given = [self.value(arg) for arg in args]
        if target is torch.sym_not:
            return self.emit(aten.logical_not.default, torch.bool, number, *given)
        if target is torch.sym_ite:
            return self._chosen(number, *given)
        dtype = torch.bool if target in COMPARES or target in JOINS else torch.int64
        known = COMPARES.get(target) or COMPUTES.get(target) or JOINS.get(target)
        if known is None or len(given) != 2 or not isinstance(given[0], Node):
            raise CaptureError(f"what {number.name} decides by data ({target}) cannot be checked in a call", HINT)
        return self._joined(number, known, dtype, *given)

    def _joined(self, number: Node, target: Target, dtype: torch.dtype, a: Node, b: Argument) -> Node:
        return self.emit(target, dtype, number, a, b if isinstance(b, Node) else self.constant(number, b, a))

    def constant(self, number: Node, value: Argument, beside: Node) -> Node:
        made = self.graph.call_function(aten.full.default, ([], value), {"dtype": beside.meta["val"].dtype})
        made.name = unlike("decided", self.names)
        device = beside.meta["val"].device
        made.kwargs = {**made.kwargs, "device": device}
        with self.mode:
            made.meta = {**origin(number.meta), "val": torch.empty((), dtype=beside.meta["val"].dtype, device=device)}
        return made

    def _read(self, number: Node, source: Node) -> Node:
        tensor = self.env[source]
        value = source.meta["val"]
        return tensor if not value.dim() else self.emit(aten.reshape.default, value.dtype, number, tensor, [])

    def _chosen(self, number: Node, test: Node, one: Argument, other: Argument) -> Node:
        whole = self.emit(aten._to_copy.default, torch.int64, number, test)
        whole.kwargs = {"dtype": torch.int64}
        if (one, other) != (1, 0):
            raise CaptureError(f"what {number.name} decides by data cannot be checked in a call", HINT)
        return whole


def _is_fake(value: object) -> bool:
    return isinstance(value, torch._subclasses.fake_tensor.FakeTensor)
