"""Create the ``Program`` of a single operator call without torch.export, in a few milliseconds instead of fifty;
compare the programs captured from the same model on two devices."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, cast

import torch
from attrs import field, frozen
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_map_only

from pipeline.aten.types import Argument, Leaf, Target, aten
from pipeline.capture.output_names import name_outputs
from pipeline.errors import PipelineError
from pipeline.export_fixes.fake_device_copy import ensure_cuda_device_guard
from pipeline.export_fixes.patch_contexts import patch_for_device, patch_for_export
from pipeline.frozen import FrozenDict
from pipeline.program import Output, Program, make_port
from pipeline.recipes import parameter_recipe
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import Range, ShapeEnvironment, expression, shape_of
from pipeline.testing.calls import Call, Size, TensorSpec, dim_size

MAX_UNBACKED = 1024
"""The assumed maximum of sizes that depend on the data."""


class CallError(PipelineError, ValueError):
    """PyTorch itself rejects the call, or accepts it only for one value of a dynamic size."""


@frozen
class CallProgram:
    """The program of a single operator call, and which tensor or size each of its inputs is."""

    program: Program
    inputs: tuple[int | str, ...] = field()
    """For each input of the program: the index of the tensor in ``Call.specs``, or the name of a size."""

    def arguments(self, call: Call, sizes: Mapping[str, int]) -> list[Leaf]:
        """Return arguments to call the program with, for these sizes; complex tensors become pairs of reals."""
        tensors = [torch.view_as_real(t) if t.is_complex() else t for t in call.create_tensors(sizes)]
        return [tensors[i] if isinstance(i, int) else sizes[i] for i in self.inputs]


def build_call_program(call: Call, settings: CompilationSettings) -> CallProgram:
    """Create a call's program: inputs, constants, sizes read from inputs, arithmetic on sizes, the call, results."""
    if settings.device == "cuda":
        ensure_cuda_device_guard()
    with patch_for_device(settings.device, settings.compute_capabilities):
        return _Builder(call, settings.device or "cpu").build(settings)


class _Builder:
    """A program while it is being created from an operator call."""

    def __init__(self, call: Call, device: str) -> None:
        self.call, self.device = call, device
        self.graph = torch.fx.Graph()
        self.environment = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.environment, allow_non_fake_inputs=False)
        self.mode.cache_enabled = False  # each call has its own fake mode: a cache entry costs more than it saves
        self.hints = _choose_hints(call.sizes)
        self.symbols = {name: self.create_symbol(name) for name in call.sizes}
        self.size_nodes: dict[str, torch.fx.Node] = {}
        self.parameters: dict[str, torch.Tensor] = {}

    def create_symbol(self, name: str) -> torch.SymInt:
        """Create the symbol of a named size: a symbolic int whose hint is at least 2, as in torch.export."""
        size, hint = self.call.sizes[name], self.hints[name]
        source = ConstantSource(f"__size_{name}")
        symbol = self.environment.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        self.environment.constrain_symbol_range(symbol, compiler_min=2, compiler_max=max(size.max, 3))
        return cast(torch.SymInt, self.environment.create_symintnode(symbol, hint=hint, source=source))

    def build(self, settings: CompilationSettings) -> CallProgram:
        tensors = [self.create_input(i, spec) for i, spec in enumerate(self.call.specs)]
        sources: list[int | str] = [i for i, spec in enumerate(self.call.specs) if not spec.constant]
        sources += self.create_size_nodes(tensors)
        rest = iter(tensors)
        args, kwargs = self.call.map_leaves(lambda leaf: self.node_or_value_of(leaf, rest))
        node = self.graph.call_function(self.call.target, tuple(args), kwargs)
        node.meta["val"] = self.run_on_fake_tensors(args, kwargs)
        outputs = self.create_outputs(node)
        return CallProgram(self.create_program(outputs, settings), tuple(sources))

    def create_input(self, index: int, spec: TensorSpec) -> torch.fx.Node:
        """Create a tensor's placeholder; a constant becomes a parameter, a complex input pairs of reals."""
        node = self.graph.placeholder(f"{'p' if spec.constant else 'x'}{index}")
        pairs = spec.dtype.is_complex and not spec.constant
        shape = [dim_size(d, self.symbols) for d in spec.shape]
        with self.mode:
            dtype = spec.dtype.to_real() if pairs else spec.dtype
            node.meta["val"] = torch.empty([*shape, 2] if pairs else shape, dtype=dtype, device=self.device)
        if spec.constant:
            self.parameters[node.name] = self.call.create_tensors()[index]
        return self.add_call(aten.view_as_complex.default, node) if pairs else node

    def create_size_nodes(self, tensors: Sequence[torch.fx.Node]) -> list[str]:
        """Create a node for each named size, which reads it from an input's shape; if no shape has it, create an int
        input. Return the names of these int inputs."""
        separate_inputs = []
        inputs = [(x, spec.shape) for x, spec in zip(tensors, self.call.specs, strict=True) if not spec.constant]
        for name in self.call.sizes:
            read = next(((x, shape.index(name)) for x, shape in inputs if name in shape), None)
            if read is None:
                node = self.graph.placeholder(name)
                separate_inputs.append(name)
            else:
                node = self.graph.call_function(aten.sym_size.int, read)
            node.meta["val"] = self.symbols[name]
            self.size_nodes[name] = node
        return separate_inputs

    def node_or_value_of(self, argument: object, tensor_nodes: Any) -> Any:
        """Return the node of an argument that is a tensor or computed from sizes; any other argument unchanged."""
        if isinstance(argument, TensorSpec):
            return next(tensor_nodes)
        return argument.evaluate(self.size_nodes, self.add_call) if isinstance(argument, Size) else argument

    def add_call(self, function: Target, *args: Argument) -> torch.fx.Node:
        """Create a node that calls a function, and compute its value on fake tensors."""
        node = self.graph.call_function(function, args)
        values = map_arg(args, lambda n: n.meta["val"])
        with self.mode:
            node.meta["val"] = function(*(v.resolve_conj() if isinstance(v, torch.Tensor) else v for v in values))
        return node

    def run_on_fake_tensors(self, args: Argument, kwargs: Argument) -> Any:
        """Return the call's result on fake tensors; raise a `CallError` if a guard fixes a dynamic size."""
        args, kwargs = map_arg((args, kwargs), lambda n: n.meta["val"])
        try:
            with self.mode, torch.no_grad(), enable_python_dispatcher(), patch_for_export():
                result = self.call.target(*args, **kwargs)
        except Exception as error:
            raise CallError(f"PyTorch rejects the call: {type(error).__name__}: {error}") from error
        fixed = {name: expression(s) for name, s in self.symbols.items() if not _is_unconstrained(s)}
        if fixed:
            raise CallError(
                f"PyTorch accepts only one value of these dynamic sizes: {fixed}; write integers instead of their names"
            )
        return result

    def create_outputs(self, node: torch.fx.Node) -> list[Leaf]:
        """Return the nodes of ``Call.outputs``: items of a tuple, or ``node``. Complex ones become pairs of reals."""
        value, results = node.meta["val"], [node]
        if isinstance(value, tuple | list):
            results = [self.add_call(operator.getitem, node, i) for i in (self.call.outputs or range(len(value)))]
        return [self.add_call(aten.view_as_real.default, n) if n.meta["val"].is_complex() else n for n in results]

    def create_program(self, outputs: list[torch.fx.Node], settings: CompilationSettings) -> Program:
        self.graph.output(tuple(outputs))
        symbols = {str(expression(s)): self.call.sizes[name] for name, s in self.symbols.items()}
        symbols |= {str(s): Range(0, 4, MAX_UNBACKED) for out in outputs for s in _unbacked_symbols(out.meta["val"])}
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder" and n.name not in self.parameters]
        inputs = tuple(make_port(n.name, n.meta["val"], symbols) for n in placeholders)
        program = Program(
            graph_module=torch.fx.GraphModule(torch.nn.Module(), self.graph),
            inputs=inputs,
            outputs=tuple(Output(n.name) for n in outputs),
            constants=FrozenDict({name: parameter_recipe(name) for name in self.parameters}),
            buffers=FrozenDict(),
            parameters=FrozenDict(self.parameters),
            shapes=ShapeEnvironment.from_ranges(symbols),
            in_spec=tree_flatten((tuple(0 for _ in inputs), {}))[1],
            out_spec=tree_flatten([0 for _ in outputs])[1],
            settings=settings,
        )
        return name_outputs(program)


def _choose_hints(sizes: Mapping[str, Range]) -> dict[str, int]:
    """Choose a hint for each size: the example value with which torch evaluates guards while it traces. Hints differ
    if the ranges allow it, since torch may treat sizes with equal hints as always equal."""
    hints: dict[str, int] = {}
    for name, size in sizes.items():
        free = [h for h in (*range(size.opt, size.max + 1), *range(2, size.opt)) if h >= 2 and h not in hints.values()]
        hints[name] = next(iter(free), max(size.opt, 2))
    return hints


def _unbacked_symbols(value: object) -> set[object]:
    """Return the symbols of data-dependent sizes that occur in a value."""
    sizes = shape_of(value) if isinstance(value, torch.Tensor) else ()
    return {s for size in sizes if not isinstance(size, int) for s in free_unbacked_symbols(size)}


def _is_unconstrained(size: torch.SymInt) -> bool:
    """Return whether a size is still dynamic: no guard restricted it to one value, or to another size's value."""
    expr = expression(size)
    return not isinstance(expr, int) and bool(expr.is_Symbol) and expr not in size.node.shape_env.replacements


def first_difference(program: Program, other: Program) -> str:
    """Return, as text, the first node in which two programs differ, other than in devices and names of nodes, and its
    index; empty if they do not differ."""
    for index, (ours, theirs) in enumerate(zip_longest(_node_rows(program), _node_rows(other))):
        if ours != theirs:
            return f"%{index}:\n  {ours}\n  {theirs}"
    return ""


def _node_rows(program: Program) -> Iterator[tuple[str, ...]]:
    """Yield texts for each node: its target, or its constant's recipe with steps as ``%0``, ``%1``, …; its arguments by
    index; and its value's dtype and shape."""
    indices: dict[torch.fx.Node, str] = {}
    for node in program.graph.nodes:
        recipe = program.constants.get(node.name)
        called = str(node.target) if recipe is None else f"{recipe.dtype} {recipe}"
        for index, step in enumerate(recipe.steps if recipe is not None else ()):
            called = re.sub(rf"\b{re.escape(step.name)}\b", f"%{index}", called)
        args, kwargs = map_arg((node.args, dict(node.kwargs)), indices.__getitem__)
        shown = tree_map_only(torch.device, lambda device: "a device", (args, kwargs))
        indices[node] = f"%{len(indices)}"
        values = tree_map_only(torch.Tensor, lambda x: f"{x.dtype}{[str(d) for d in x.shape]}", node.meta.get("val"))
        yield node.op, called, str(shown), str(values)
