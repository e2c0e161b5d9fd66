"""Create the ``ProgramView`` of a program: every node, where it runs and why, and its layers, kernels and weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from math import prod
from typing import Final, Literal

import torch
from attrs import evolve
from sympy import preorder_traversal
from toolz import groupby

from pipeline.aten.naming import module_path, module_stack, node_name
from pipeline.aten.tensor_type import TensorType
from pipeline.compiled import Compiled, RefitMap
from pipeline.errors import Fallback, source_line_in
from pipeline.frozen import FrozenDict
from pipeline.network.description import Layer, Network
from pipeline.network.engine import Engine
from pipeline.network.kernels import Kernel, kernels
from pipeline.program import GETITEM, Partitioned, Segment, input_and_output_lines, is_operator
from pipeline.recipes import qualified_name
from pipeline.records.agreement import versions
from pipeline.records.profile import Profile
from pipeline.shapes.environment import LARGEST, Expr, Range, bounds, shape_of
from pipeline.viewing.plan_text import fusion_texts
from pipeline.viewing.records import (
    CutView,
    KernelView,
    LayerView,
    ModuleView,
    NodeView,
    Place,
    ProgramView,
    SegmentView,
    StageView,
    Value,
    WeightView,
)

MOST_PARTS: Final = 10_000
"""The maximum number of terms in a program's size expressions that get ranges; transformers' models have hundreds."""


def view_program(program: Compiled | Partitioned, title: str = "", profile: Profile | None = None) -> ProgramView:
    """Create the view of a program, which describes its nodes, engines and weights.

    Args:
        program: a compiled program, or the result of ``partition``.
        title: the program's name on the page.
        profile: the result of `Compiled.profile`.
    """
    return _Collector(program).collect(title, profile)


class _Collector:
    """A collector of everything that a program's view shows; it indexes nodes, layers and kernels by name."""

    def __init__(self, program: Compiled | Partitioned) -> None:
        if isinstance(program, Partitioned):  # a program without networks and engines
            program = Compiled(program, (), (), RefitMap(), FrozenDict())
        self.compiled, self.partitioned, self.program = program, program.partitioned, program.program
        self.engines = {engine.name: engine for engine in program.engines}
        self.networks = {network.name: network for network in program.networks}
        self.nodes = {node.name: node for node in self.program.graph.nodes}
        self.fallbacks: Mapping[str, Fallback] = {f.node: f for f in self.partitioned.fallbacks}
        self.ranges: dict[Expr, Range] = {}
        self.parts = 0
        self.fusion = fusion_texts(program.networks, program.quantization)
        self.healed = groupby(lambda row: row.node, program.healed)
        self.engine_weights = {w.name: (w.dtype, w.shape) for network in program.networks for w in network.weights}
        layers = [(n.name, node_name(layer.name), layer) for n in program.networks for layer in n.layers]
        self.layers = groupby(lambda row: row[:2], layers)
        engines = zip(program.engines, program.networks, strict=False)
        self.kernels = tuple(kernel for engine, network in engines for kernel in self.read_kernels(engine, network))
        self.kernels_by_node = groupby(0, ((name, i) for i, kernel in enumerate(self.kernels) for name in kernel.nodes))
        self.segment_of = {n: s for s in reversed(self.partitioned.segments) for n in s.nodes}

    def collect(self, title: str, profile: Profile | None) -> ProgramView:
        """Return the complete view of the program."""
        program, compiled, words = self.program, self.compiled, self.program.shapes.words
        inputs, outputs = input_and_output_lines(self.partitioned)
        rows = [self.view_node(node) for node in program.graph.nodes if self.is_shown(node)]
        modules = dict(row for node in program.graph.nodes for row in module_stack(node.meta))
        return ProgramView(
            title=title or modules.get("", "").rpartition(".")[2] or "program",
            nodes=tuple(rows),
            modules=tuple(ModuleView(path, kind) for path, kind in modules.items()),
            segments=tuple(map(self.view_segment, self.partitioned.segments)),
            cuts=tuple(
                CutView(cut.source, cut.target, tuple(p.text(words) for p in cut.tensors), cut.nbytes, cut.max_nbytes)
                for cut in self.partitioned.cuts
            ),
            kernels=self.kernels,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            sizes=tuple(program.shapes.lines()),
            stages=tuple(StageView(e.stage, e.seconds, e.growth, e.peak) for e in compiled.took),
            settings=tuple(program.settings.changed().items()),
            versions=tuple(versions().items()),
            healed=compiled.healed,
            unreached=program.unreached,
            agreement=compiled.agreement,
            profile=profile,
        )

    def is_shown(self, node: torch.fx.Node) -> bool:
        """Return whether a node is drawn; constants are not drawn, but shown with the nodes that read them."""
        return node.name not in self.program.constants and node.op != "get_attr"

    def view_node(self, node: torch.fx.Node) -> NodeView:
        """Return the view of one node: what it computes, and where and how it runs."""
        kind, segment = _node_kind(node), self.segment_of.get(node.name)
        place: Place = "host"
        if segment is not None and kind == "operator":
            place = "tensorrt" if segment.kind == "engine" else "pytorch"
        verdict, fallback = self.partitioned.verdicts.get(node.name), self.fallbacks.get(node.name)
        node_view = NodeView(
            name=node.name,
            kind=kind,
            target=verdict.target if verdict else _target_name(node),
            place=place,
            segment=segment.name if segment else "",
            module=module_path(node),
            where=node.meta.get("where") or source_line_in(node.meta),
            inputs=tuple(n.name for n in node.all_input_nodes if self.is_shown(n)),
            values=tuple(self.node_values(node.meta.get("val"))) if node.op != "output" else (),
            reason=fallback.reason if fallback else "",
            hint=fallback.hint if fallback else "",
            healed="; ".join(f"{h.action}: {h.reason}" for h in self.healed.get(node.name, ())),
        )
        if place != "tensorrt":
            return evolve(node_view, weights=self.graph_weights(node))
        return self.view_engine_node(node_view, node)

    def size_range(self, size: Expr) -> Range:
        """Return a size expression's range; unbounded if a (malicious) file has too many long expressions."""
        if size not in self.ranges:
            self.parts += 1 if isinstance(size, int) else sum(1 for _ in preorder_traversal(size))
            slow = self.parts > MOST_PARTS and not isinstance(size, int)
            self.ranges[size] = Range(0, 1, LARGEST) if slow else bounds(size, self.program.shapes)
        return self.ranges[size]

    def node_values(self, value: object) -> Iterator[Value]:
        """Yield the tensors and numbers that a node returns; dynamic sizes have the names that the model uses."""
        if isinstance(value, tuple | list):
            for part in value:
                yield from self.node_values(part)
        elif isinstance(value, torch.Tensor | TensorType):
            shape = shape_of(value)
            ranges = [self.size_range(size) for size in shape]
            dtype = str(value.dtype).removeprefix("torch.")
            spans = tuple((r.min, r.opt, r.max) for r in ranges)
            sizes = tuple(map(self.program.shapes.words, shape))
            yield Value(dtype, sizes, spans, _tensor_bytes(dtype, (r.opt for r in ranges)))
        elif value is not None:
            yield Value(_number_type(value))

    def view_engine_node(self, node_view: NodeView, node: torch.fx.Node) -> NodeView:
        """Add to a node's view how an engine runs the node: its converter, layers, weights and kernels."""
        choice = self.partitioned.verdicts[node.name].choice
        layers: list[Layer] = [layer for *_, layer in self.layers.get((node_view.segment, node.name), ())]
        names = dict.fromkeys(weight for layer in layers for _, weight in layer.weights)
        return evolve(
            node_view,
            converter=choice.support.name if choice else "",
            layers=tuple(LayerView(layer.name, layer.kind) for layer in layers),
            kernels=tuple(number for _, number in self.kernels_by_node.get(node.name, ())),
            weights=tuple(map(self.engine_weight, names)) if self.networks else self.graph_weights(node),
            fusion=self.fusion.get((node_view.segment, node.name), ""),
        )

    def read_kernels(self, engine: Engine, network: Network) -> Iterator[KernelView]:
        """Yield the kernels of one engine; none if its plan does not list them."""
        layer_names = self.compiled.layer_names(engine, network)
        found: tuple[Kernel, ...] = ()
        with suppress(ValueError):
            found = kernels(engine.checked_plan())
        for kernel in found:
            nodes = dict.fromkeys(node_name(layer_names.get(layer, layer)) for layer in kernel.layers)
            yield KernelView(engine.name, kernel.kind, kernel.name, tuple(n for n in nodes if n in self.nodes))

    def engine_weight(self, name: str) -> WeightView:
        """Return the view of a weight of an engine, by the weight's name in the engine."""
        dtype, shape = self.engine_weights[name]
        recipe, fixed = self.compiled.refit_map.get(name), self.compiled.refit_map.computed.get(name, "")
        literal = "" if recipe is not None or fixed else "a constant of the converter's own"
        return WeightView(name, dtype, shape, _tensor_bytes(dtype, shape), str(recipe or ""), fixed or literal)

    def graph_weights(self, node: torch.fx.Node) -> tuple[WeightView, ...]:
        """Return the views of the weights that a node reads in the graph."""
        return tuple(self.graph_weight(n) for n in node.all_input_nodes if n.name in self.program.constants)

    def graph_weight(self, node: torch.fx.Node) -> WeightView:
        """Return the view of a weight, given its node in the graph."""
        recipe, value = self.program.constants[node.name], node.meta.get("val")
        if not isinstance(value, torch.Tensor | TensorType):
            return WeightView(recipe.name, type(value).__name__, recipe=str(recipe))
        dtype, shape = str(value.dtype).removeprefix("torch."), tuple(int(d) for d in value.shape)
        return WeightView(recipe.name, dtype, shape, _tensor_bytes(dtype, shape), str(recipe))

    def view_segment(self, segment: Segment) -> SegmentView:
        """Return the view of one segment: an engine, or a part that runs in PyTorch."""
        verdicts, words = self.partitioned.verdicts, self.program.shapes.words
        inside = [n for n in segment.nodes if n in verdicts and verdicts[n].target != GETITEM]
        engine, network = self.engines.get(segment.name), self.networks.get(segment.name)
        weights = network.weights if network else [self.graph_weight(self.nodes[name]) for name in segment.constants]
        return SegmentView(
            name=segment.name,
            place="tensorrt" if segment.kind == "engine" else "pytorch",
            operators=len(inside),
            nbytes=engine.nbytes if engine else 0,
            weights=sum(_tensor_bytes(weight.dtype, weight.shape) for weight in weights),
            library=engine.library if engine else "",
            digest=engine.digest if engine else "",
            layers=len(network.layers) if network else 0,
            inputs=tuple(port.text(words) for port in segment.inputs),
            outputs=tuple(port.text(words) for port in segment.outputs),
        )


def _node_kind(node: torch.fx.Node) -> Literal["operator", "item", "size", "input", "output"]:
    if node.op == "placeholder":
        return "input"
    if node.op == "output":
        return "output"
    if _target_name(node) == GETITEM:
        return "item"
    tensors = isinstance(node.meta.get("val"), torch.Tensor | TensorType | tuple | list)
    return "operator" if is_operator(node) or tensors else "size"


def _target_name(node: torch.fx.Node) -> str:
    return qualified_name(node.target) if node.op == "call_function" else node.op


def _number_type(value: object) -> str:
    """Return the type of a Python number, torch's symbolic number, or a size expression from a file."""
    if isinstance(value, bool | torch.SymBool):
        return "bool"
    return "float" if isinstance(value, float | torch.SymFloat) else "int"


def _tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Return a tensor's size in bytes; 4-bit elements count half a byte, as in TensorRT."""
    count = prod(shape)
    found = getattr(torch, dtype, None)
    return count * found.itemsize if isinstance(found, torch.dtype) else (count + 1) // 2
