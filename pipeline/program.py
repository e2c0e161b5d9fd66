"""The records that one stage returns and the next one receives, from ``Program`` to ``Built``.

``Compiled`` is in ``compiled.py``. Every record is frozen. Graphs and tensors are handles (``eq=False``).
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from types import FunctionType
from typing import Any, Literal

import torch
from attrs import evolve, field, frozen

from pipeline.aten.graphs import graph_module, results_of
from pipeline.aten.support import Choice, Rejection
from pipeline.aten.tensor_type import TensorType
from pipeline.errors import Fallback, Unreached
from pipeline.frozen import FrozenDict
from pipeline.network.description import Network
from pipeline.network.engine import Engine
from pipeline.network.handle import NetworkHandle
from pipeline.network.marks import Mark
from pipeline.recipes import Recipe, qualified_name
from pipeline.records.parameter import Parameter
from pipeline.records.sharding import Sharding
from pipeline.records.wording import format_bytes
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import Range, Shape, ShapeEnvironment, Symbols, as_expr, bounds, expression, shape_of
from pipeline.shapes.port_text import output_lines, port_text


def text_digest(text: str) -> str:
    """Return the SHA-256 of a record's text, such as a printed program. Unlike ``==`` it tells ``1`` from ``True``."""
    return hashlib.sha256(text.encode()).hexdigest()


def tensor_version(tensor: torch.Tensor) -> int:
    """Return a tensor's version counter; 0 for an inference tensor, whose writes torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


@frozen
class Port:
    """A value that enters or leaves a program or a segment: a tensor, a symbolic int, or a plain constant.

    ``shape`` has ints and sympy expressions; ``ranges`` has each dim's bounds. ``kind`` is ``"tensor"``; ``"symint"``
    or ``"symfloat"``: a Python number that the host computes from sizes by the expression ``value``, and passes to
    engines as a 0-d int64 or float32 tensor; or ``"constant"``: ``value`` is part of the program, and a call with
    another value raises an error.
    """

    name: str
    dtype: torch.dtype | None = None
    shape: Shape = ()
    ranges: tuple[Range, ...] = ()
    kind: Literal["tensor", "symint", "symfloat", "constant"] = "tensor"
    value: Any = None
    layout: torch.layout = torch.strided

    @property
    def is_number(self) -> bool:
        """Return whether the value is a Python number that depends on sizes."""
        return self.kind in ("symint", "symfloat")

    def nbytes(self, choose_size: Callable[[Range], int]) -> int:
        """Return the size of a tensor in bytes; ``choose_size`` picks the size of each dim from the dim's range."""
        if self.kind != "tensor" or self.dtype is None:
            return 0
        return self.dtype.itemsize * math.prod(map(choose_size, self.ranges))

    text = __str__ = port_text


def make_port(name: str, graph_value: object, symbols: Symbols) -> Port:
    """Return the `Port` that describes a graph value: a fake tensor, a symbolic number or a constant."""
    if isinstance(graph_value, torch.Tensor):
        shape = shape_of(graph_value)
        return Port(name, graph_value.dtype, shape, tuple(bounds(d, symbols) for d in shape), layout=graph_value.layout)
    if isinstance(graph_value, torch.SymInt):
        expr = expression(graph_value)
        return Port(name, torch.int64, (), (bounds(expr, symbols),), "symint", expr)
    if isinstance(graph_value, torch.SymFloat):
        return Port(name, torch.float32, kind="symfloat", value=as_expr(graph_value))
    return Port(name, kind="constant", value=graph_value)


@frozen
class Output:
    """One output of a program.

    ``value``: a graph node's name, or (``constant=True``) the Python value itself. ``name``: a key in the model's
    result, or the name of the mutated buffer or input. The meaning of ``target`` depends on ``kind``:

    - ``"user"``: a result of the model. ``target`` is the name of the returned tensor at capture: outputs with equal
      targets are the same tensor, and the name of an input, parameter or buffer means that tensor itself, after
      mutation. Without a target, each call returns a new tensor.
    - ``"buffer"``, ``"input"``: the new value of the buffer or input ``target``, written back to it after every call.
    - ``"check"``: True if a call writes rows outside of a buffer; ``target`` is the first of the checked buffers.
    - ``"decision"``: True if a call takes another branch at the source line ``target`` than the example inputs.
    """

    value: Any
    kind: Literal["user", "buffer", "input", "check", "decision"] = "user"
    target: str = ""
    constant: bool = False
    name: str = ""


@frozen(kw_only=True)
class SavedFields:
    """The fields of a program that its file stores unchanged; a new field must have a default.

    ``constants``: by placeholder, the `Recipe` that computes a constant from ``parameters``, the model's tensors.
    ``buffers``: by placeholder, the name of each buffer that the program mutates. ``aliases``: all names in the model's
    state dict. ``written``: the names of tensors in ``parameters`` that are literals in the model's code or
    `pipeline.Constant` inputs. ``numbers``: the elements of buffers (``stride[1]``) that Python read during the
    capture. ``unreached``: the user's converters, decompositions and settings that were not used.
    ``profiles``: the optimization profiles, one of which a call must fit. ``signature``: the parameters of ``forward``.
    ``sharding``: the rank of a part of a sharded model.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Output, ...]
    constants: FrozenDict[str, Recipe] = field(repr=False)
    buffers: FrozenDict[str, str] = field(factory=FrozenDict)
    shapes: ShapeEnvironment
    aliases: frozenset[str] = field(eq=False, repr=False, default=frozenset())
    written: frozenset[str] = field(eq=False, repr=False, default=frozenset())
    numbers: FrozenDict[str, float] = field(eq=False, repr=False, factory=FrozenDict)
    unreached: tuple[Unreached, ...] = ()
    profiles: tuple[FrozenDict[str, Range], ...] = ()
    signature: tuple[Parameter, ...] = field(eq=False, repr=False, default=())
    sharding: Sharding | None = None


@frozen(kw_only=True)
class Program(SavedFields):
    """A captured model: a functional ATen graph whose placeholders are parameters, buffers and user inputs.

    ``versions``: the parameters' version counters at capture. ``examples``: the example tensors, by input. ``source``:
    the program before `decompose`. ``origin``: the captured module, held weakly (`capture.origin.Origin`).
    ``decomposed``: the operators that the user's decompositions have replaced.
    """

    graph_module: torch.fx.GraphModule = field(eq=False, repr=False)
    parameters: FrozenDict[str, torch.Tensor] = field(eq=False, repr=False)
    in_spec: Any = field(eq=False, repr=False)
    out_spec: Any = field(eq=False, repr=False)
    settings: CompilationSettings
    versions: FrozenDict[str, int] = field(eq=False, repr=False, factory=FrozenDict)
    examples: FrozenDict[str, torch.Tensor] = field(eq=False, repr=False, factory=FrozenDict)
    source: Program | None = field(eq=False, repr=False, default=None)
    decomposed: frozenset[Any] = field(eq=False, repr=False, default=frozenset())
    origin: Any = field(eq=False, repr=False, default=None)

    @property
    def graph(self) -> torch.fx.Graph:
        """Return the graph, which must not be changed; its nodes have fake tensors in ``meta["val"]``."""
        return self.graph_module.graph

    def with_graph(self, graph: torch.fx.Graph, **changes: Any) -> Program:
        """Return this program with another graph over the same parameters and modules, and with these field changes."""
        return evolve(self, graph_module=graph_module(self.graph_module, graph), **changes)

    def without_weights(self) -> Program:
        """Return this program without parameters and examples: the ``source`` of a derived program, which has them."""
        return evolve(self, parameters=FrozenDict(), examples=FrozenDict(), source=None)

    def __str__(self) -> str:
        lines = [*(f"input {p}" for p in self.inputs), *(f"where {r}" for r in self.shapes.relations)]
        for node in self.graph.nodes:
            if node.op in ("call_function", "get_attr"):
                args = ", ".join([*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())])
                target = qualified_name(node.target) if isinstance(node.target, FunctionType) else node.target
                lines.append(f"%{node.name}: {describe_value(node.meta.get('val'))} = {target}({args})")
        return "\n".join([*lines, *map(str, self.outputs)])

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the printed program with its settings and the recipes of its constants."""
        recipes = "\n".join(f"{name} = {recipe}" for name, recipe in self.constants.items())
        return text_digest(f"{self}\n{recipes}\n{self.settings!r}")


def rename_outputs(outputs: Iterable[Output], graph: torch.fx.Graph) -> tuple[Output, ...]:
    """Return the outputs, each with the value that ``graph`` returns in its place: a rewrite may have renamed nodes."""
    nodes = zip(outputs, results_of(graph), strict=True)
    return tuple(evolve(o, value=getattr(v, "name", v), constant=not isinstance(v, torch.fx.Node)) for o, v in nodes)


def describe_value(graph_value: object) -> str:
    """Return a graph value's dtype and shape as text: ``float32[s0, 3]``."""
    if isinstance(graph_value, (torch.Tensor, TensorType)):
        return f"{str(graph_value.dtype).removeprefix('torch.')}[{', '.join(map(str, shape_of(graph_value)))}]"
    if isinstance(graph_value, (list, tuple)):
        return f"({', '.join(map(describe_value, graph_value))})"
    return str(graph_value)


READS_DATA = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
"""The operators that return a tensor's element to Python as a number."""


def is_operator(node: torch.fx.Node) -> bool:
    """Return whether a node computes tensors or reads a number from one; not size arithmetic or an assertion."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    value = node.meta.get("val")
    if node.target in READS_DATA:
        return True
    return isinstance(value, torch.Tensor | TensorType) or (isinstance(value, (tuple, list)) and len(value) > 0)


@frozen
class Verdict:
    """The result of the stage `validate` for one node: the converter that accepts the node, or each converter's reason
    for refusing it. ``others`` are further converters that accept the node."""

    node: str
    target: str
    choice: Choice | None = field(default=None, eq=False)
    reasons: tuple[Rejection, ...] = ()
    where: str = ""
    others: tuple[Choice, ...] = field(default=(), eq=False, repr=False)

    @property
    def supported(self) -> bool:
        """Return whether TensorRT can run the node."""
        return self.choice is not None

    def __str__(self) -> str:
        return f"{self.node}: {self.target}: " + ("TensorRT" if self.supported else "; ".join(map(str, self.reasons)))


@frozen
class Validated:
    """A program, and by node name the verdict on each operator: its converter, or the reasons why it has none."""

    program: Program
    verdicts: FrozenDict[str, Verdict]

    def __str__(self) -> str:
        return "\n".join(map(str, self.verdicts.values()))


@frozen
class Segment:
    """A part of a program that runs in an engine or in PyTorch.

    ``nodes``: names of graph nodes in order. ``constants``: the placeholders of the weights that the segment contains;
    a weight that `shared_weights` keeps outside of engines is in ``inputs`` instead. ``profile``: the index of the
    optimization profile if the segment runs only in calls of that profile; None: it runs in all calls. ``marks``: the
    workarounds for kernel bugs; None before `avoid_faults`.
    """

    name: str
    kind: Literal["engine", "torch"]
    nodes: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: tuple[str, ...] = ()
    profile: int | None = None
    marks: tuple[Mark, ...] | None = None

    def __str__(self) -> str:
        ports = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        when = "" if self.profile is None else f" in profile {self.profile}"
        return f"{self.kind} {self.name}{when}: {len(self.nodes)} nodes {ports}\n  " + "\n  ".join(self.nodes)

    def runs_in(self, profile_index: int | None) -> bool:
        """Return whether the segment runs in calls of this profile; None: whether it runs in calls of every profile."""
        return self.profile is None or self.profile == profile_index


@frozen
class Cut:
    """The tensors that cross from one segment to a later one. Sizes that cross are not included."""

    source: str
    target: str
    tensors: tuple[Port, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the crossing ``tensors`` at the optimal sizes, for which TensorRT tunes engines."""
        return sum(port.nbytes(lambda r: r.opt) for port in self.tensors)

    @property
    def max_nbytes(self) -> int:
        """Return the bytes of the crossing ``tensors`` at their largest sizes."""
        return sum(port.nbytes(lambda r: r.max) for port in self.tensors)

    def __str__(self) -> str:
        count = f"{len(self.tensors)} tensor{'s'[: len(self.tensors) != 1]}"
        largest = f" (at most {format_bytes(self.max_nbytes)})" if self.nbytes != self.max_nbytes else ""
        size = format_bytes(self.nbytes) + largest
        return f"{self.source} -> {self.target}: {count}, {size}: {', '.join(p.name for p in self.tensors)}"


@frozen
class Partitioned:
    """A program split into segments in execution order, with the reason for each node outside of engines, and the
    values that cross from segment to segment. The record prints as a table of all three."""

    program: Program
    segments: tuple[Segment, ...]
    verdicts: FrozenDict[str, Verdict] = field(repr=False)
    fallbacks: tuple[Fallback, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def engine_segments(self) -> tuple[Segment, ...]:
        """Return the segments for which engines are built."""
        return tuple(s for s in self.segments if s.kind == "engine")

    def __str__(self) -> str:
        inside = {n for s in self.engine_segments for n in s.nodes if self.verdicts[n].target != GETITEM}
        inside -= {fallback.node for fallback in self.fallbacks}
        segments, engines = len(self.segments), len(self.engine_segments)
        share = f"{len(inside)} of {len(inside) + len(self.fallbacks)} operators"
        first = f"{segments} segment{'s'[: segments != 1]}: {share} in {engines} engine{'s'[: engines != 1]}"
        return "\n".join(
            [first, *(line for s in self.segments for line in segment_lines(self, s)), *map(str, self.fallbacks)]
        )


GETITEM = "operator.getitem"
"""The target of nodes that take an item of a tuple; such nodes are not counted as operators."""


def count_operators(partitioned: Partitioned, segment: Segment) -> Counter[str]:
    """Return how often a segment calls each operator, by the operator's name."""
    targets = (partitioned.verdicts[name].target for name in segment.nodes)
    return Counter(target for target in targets if target != GETITEM)


def input_and_output_lines(partitioned: Partitioned) -> tuple[list[str], list[str]]:
    """Return a text line for each input and for each output of a program, with the model's names for dynamic sizes."""
    program = partitioned.program
    ports = (*program.inputs, *(port for segment in partitioned.segments for port in segment.outputs))
    inputs = [port_text(port, program.shapes.words) for port in program.inputs]
    return inputs, [*output_lines(program.outputs, ports, program.shapes.words)]


def segment_lines(partitioned: Partitioned, segment: Segment) -> Iterator[str]:
    """Yield the lines that describe a segment: operators, inputs, outputs, and values that later segments read."""
    counts = count_operators(partitioned, segment)
    listed = ", ".join(f"{n} {target}" for target, n in sorted(counts.items(), key=lambda row: (-row[1], row[0])))
    yield f"{segment.name}: {(total := counts.total())} operator{'s'[: total != 1]}: {listed}"
    words = partitioned.program.shapes.words
    yield from (f"  input  {port_text(port, words)}" for port in segment.inputs)
    names = {o.value: o.name for o in partitioned.program.outputs if o.kind == "user" and not o.constant}
    yield from (f"  output {port_text(port, words, names.get(port.name, ''))}" for port in segment.outputs)
    yield from (f"  cut    {cut}" for cut in partitioned.cuts if cut.source == segment.name)
    yield from (f"  mark   {mark}" for mark in segment.marks or ())


@frozen
class Converted:
    """A TensorRT network for each engine segment, and its frozen description.

    ``networks``: the descriptions. ``handles``: the TensorRT networks with the memory of their weights. By weight name,
    ``recipes``: how to compute the weight from the model's parameters; ``literals``: the weights that a converter
    created itself; ``computed``: those of ``literals`` that a converter seems to have computed from parameters, each
    with the reason why it cannot be refitted.
    """

    partitioned: Partitioned
    networks: tuple[Network, ...]
    handles: tuple[NetworkHandle, ...] = field(eq=False, repr=False)
    recipes: FrozenDict[str, Recipe] = field(repr=False)
    literals: FrozenDict[str, torch.Tensor] = field(eq=False, repr=False)
    computed: FrozenDict[str, str] = field(factory=FrozenDict)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.networks))


@frozen
class Built:
    """Serialized engines, and the frozen descriptions of their networks; TensorRT's own networks are freed."""

    partitioned: Partitioned
    networks: tuple[Network, ...]
    engines: tuple[Engine, ...]
    recipes: FrozenDict[str, Recipe] = field(repr=False)
    literals: FrozenDict[str, torch.Tensor] = field(eq=False, repr=False)
    computed: FrozenDict[str, str] = field(factory=FrozenDict)
