"""Random programs for partitioners: graphs of operators, made without torch.export, some of which engines refuse.

They are drawn as steps; each appends a few operators to the graph. Every value is a float32[4, 4] where a step ends.
What a step makes that TensorRT fuses is noted, for the laws to ask for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import count, cycle
from typing import Any

import torch
from attrs import define, field
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import pipeline
from pipeline.frozen import FrozenDict
from pipeline.program import Output, Partitioned, Program, Validated, Verdict, is_operator, make_port
from pipeline.recipes import parameter_recipe, qualified_name
from pipeline.runtime.torch_segment import torch_segment
from pipeline.shapes.environment import ShapeEnvironment

aten = torch.ops.aten
Node = torch.fx.Node

INPUTS = ("x", "y")
WEIGHTS = ("w", "v")


@define(eq=False)
class Builder:
    """A graph in the making."""

    graph: torch.fx.Graph = field(factory=torch.fx.Graph)
    mode: FakeTensorMode = field(factory=FakeTensorMode)
    modules: Any = field(factory=lambda: cycle([""]))
    patterns: list[tuple[Node, ...]] = field(factory=list)
    numbers: Any = field(factory=count)

    def placeholder(self, name: str) -> Node:
        """An input or a weight."""
        node = self.graph.placeholder(name)
        node.meta["val"] = self.mode.from_tensor(torch.empty(4, 4))
        return node

    def call(self, target: Any, *args: Any) -> Node:
        """A call, with the fake tensors that it makes."""
        node = self.graph.create_node("call_function", target, args, {}, f"n{next(self.numbers)}")
        with self.mode:
            node.meta["val"] = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]))
        if module := next(self.modules):
            node.meta["nn_module_stack"] = {f"L__self__{module}": (module, "Module")}
        return node

    def fused(self, *nodes: Node) -> Node:
        """Notes a pattern; gives its result."""
        self.patterns.append(nodes)
        return nodes[-1]


def add(b: Builder, p: Node, q: Node, w: Node) -> Node:
    return b.call(aten.add.Tensor, p, q)


def scaled(b: Builder, p: Node, q: Node, w: Node) -> Node:
    return b.call(aten.mul.Tensor, p, b.call(aten.sigmoid.default, w))


def dense(b: Builder, p: Node, q: Node, w: Node) -> Node:
    made = b.call(aten.linear.default, p, w)
    total = b.call(aten.add.Tensor, made, q)
    return b.fused(made, total, b.call(aten.relu.default, total))


def silu(b: Builder, p: Node, q: Node, w: Node) -> Node:
    made = b.call(aten.mm.default, p, w)
    gate = b.call(aten.sigmoid.default, made)
    return b.fused(made, gate, b.call(aten.mul.Tensor, made, gate))


def attention(b: Builder, p: Node, q: Node, w: Node) -> Node:
    scores = b.call(aten.mm.default, p, b.call(aten.t.default, q))
    half = b.call(aten.mul.Tensor, scores, 0.5)
    weights = b.call(aten.softmax.int, half, -1)
    return b.fused(scores, half, weights, b.call(aten.mm.default, weights, w))


def cast(b: Builder, p: Node, q: Node, w: Node) -> Node:
    return b.call(aten.to.dtype, b.call(aten.to.dtype, p, torch.float64), torch.float32)


def viewed(b: Builder, p: Node, q: Node, w: Node) -> Node:
    return b.call(aten.reshape.default, b.call(aten.reshape.default, p, [16]), [4, 4])


def split(b: Builder, p: Node, q: Node, w: Node) -> Node:
    halves = b.call(aten.split.Tensor, p, 2)
    first, second = (b.call(operator.getitem, halves, i) for i in range(2))
    return b.call(aten.cat.default, [second, first])


def filled(b: Builder, p: Node, q: Node, w: Node) -> Node:
    ones = b.call(aten.full.default, [4], 0.5)
    return b.call(aten.add.Tensor, p, b.call(aten.expand.default, ones, [4, 4]))


def reduced(b: Builder, p: Node, q: Node, w: Node) -> Node:
    return b.call(aten.expand.default, b.call(aten.amax.default, p, [1], True), [4, 4])


def narrow(b: Builder, p: Node, q: Node, w: Node) -> Node:
    wide, tall = b.call(aten.cat.default, [p] * 4, 1), b.call(aten.cat.default, [w] * 4)
    made = b.call(aten.mm.default, wide, tall)
    total = b.call(aten.add.Tensor, made, q)
    return b.fused(made, total, b.call(aten.relu.default, total))


Step = Callable[[Builder, Node, Node, Node], Node]
STEPS: tuple[Step, ...] = (*(add, scaled, dense, narrow, silu, attention), *(cast, viewed, split, filled, reduced))


MODULES = st.sampled_from(("", *(f"block.{i}" for i in range(4))))


@define(eq=False)
class Case:
    """A program with verdicts, and the patterns in it that no cut may part."""

    validated: Validated
    patterns: tuple[tuple[str, ...], ...]

    def operators(self) -> list[str]:
        """The names of its operators."""
        return [n.name for n in self.validated.program.graph.nodes if is_operator(n)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Programs of 1 to 16 steps, in and across submodules or in none, with some operators refused, and settings."""
    builder = Builder()
    values = [builder.placeholder(name) for name in INPUTS]
    weights = [builder.placeholder(name) for name in WEIGHTS]
    for _ in range(draw(st.integers(1, 16))):
        builder.modules = cycle(draw(st.lists(MODULES, min_size=1, max_size=3)))
        step, w = draw(st.sampled_from(STEPS)), draw(st.sampled_from(weights))
        p, q = (values[-1 - draw(st.integers(0, most))] for most in (1, len(values) - 1))
        values.append(step(builder, p, q, w))
    outputs = dict.fromkeys([values[-1], *draw(st.lists(st.sampled_from(values[2:]), max_size=2))])
    builder.graph.output(tuple(outputs))
    builder.graph.eliminate_dead_code()
    alive = [n for n in builder.graph.nodes if is_operator(n)]
    share = draw(st.sampled_from((0, 10, 30, 60)))
    refused = {n for n in alive if draw(st.integers(0, 99)) < share}
    settings = pipeline.CompilationSettings(
        min_block_size=draw(st.sampled_from((1, 1, 2, 3, 5))), max_engines=draw(st.sampled_from((None, 1, 2)))
    )
    patterns = [nodes for nodes in builder.patterns if _stays_whole(nodes, set(alive) - refused)]
    return Case(
        _validated(builder.graph, tuple(outputs), refused, settings), tuple(tuple(n.name for n in p) for p in patterns)
    )


def _stays_whole(nodes: tuple[Node, ...], supported: set[Node]) -> bool:
    """Whether engines can run all of a pattern, and nothing else reads its inside."""
    inside = set(nodes)
    return inside <= supported and all(user in inside for n in nodes[:-1] for user in n.users)


def _validated(
    graph: torch.fx.Graph, outputs: tuple[Node, ...], refused: set[Node], settings: pipeline.CompilationSettings
) -> Validated:
    placeholders = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    program = Program(
        graph_module=torch.fx.GraphModule(torch.nn.Module(), graph),
        inputs=tuple(make_port(name, placeholders[name].meta["val"], {}) for name in INPUTS),
        outputs=tuple(Output(n.name) for n in outputs),
        constants=FrozenDict({name: parameter_recipe(name) for name in WEIGHTS}),
        buffers=FrozenDict(),
        parameters=FrozenDict({name: torch.randn(4, 4) for name in WEIGHTS}),
        shapes=ShapeEnvironment.from_ranges({}),
        in_spec=None,
        out_spec=None,
        settings=settings,
    )
    calls = [n for n in graph.nodes if n.op == "call_function"]
    return Validated(program, FrozenDict({n.name: _verdict(n, n in refused) for n in calls}))


def _verdict(node: Node, refused: bool) -> Verdict:
    target = qualified_name(node.target)
    if refused:
        return Verdict(node.name, target, None, (pipeline.Rejection("at random"),))
    return Verdict(node.name, target, "any converter")


def run(partitioned: Partitioned, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the program gives if its segments run one after the other, all of them in PyTorch."""
    program, values = partitioned.program, dict(inputs)
    device = torch.device("cpu")
    for segment in partitioned.segments:
        part = torch_segment(program, segment, program.parameters.__getitem__, device)
        results = part([values[p.name] for p in segment.inputs])
        values |= {p.name: r for p, r in zip(segment.outputs, results, strict=True)}
    return [values[str(o.value)] for o in program.outputs]


def whole(program: Program, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the program gives uncut."""
    given = {**program.parameters, **inputs}
    return list(program.graph_module(*(given[n.name] for n in program.graph.nodes if n.op == "placeholder")))
