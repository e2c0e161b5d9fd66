"""``pipeline.backend``: a backend of ``torch.compile``, which compiles each graph that Dynamo finds.

Dynamo passes a model's parameters and buffers as inputs, as well as varying sizes and floats. Here parameters and
buffers become weights again, sizes are read from the tensors, and floats become part of the program. The program's
conditions on sizes go back to Dynamo as guards: a call that violates them compiles again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter, is_
from typing import Any, Final, NoReturn

import torch
from attrs import define, field
from torch._C import _functorch
from torch._guards import tracing
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException
from torch.export import Dim
from torch.fx import GraphModule, Interpreter, Node
from torch.fx import traceback as provenance

from pipeline.artifact.refit import refit_module_weights
from pipeline.aten.types import Argument, Function
from pipeline.compiled import Compiled, Executor
from pipeline.compose.annotations import accepts
from pipeline.compose.pipelines import Pipeline
from pipeline.defaults import default
from pipeline.errors import PipelineError, source_line
from pipeline.frontend.capture import capture
from pipeline.frontend.quiet import said_already
from pipeline.frontend.returned_views import returned_views
from pipeline.program import Program
from pipeline.runtime.overlap import shared, written_inputs
from pipeline.settings import CompilationSettings
from pipeline.shapes.exported import UNBOUNDED_FACTOR

log = logging.getLogger(__name__)


def backend(compile: Pipeline[Program, Compiled] | None = None, *, executor: Executor | None = None) -> Backend:
    """Return a backend of ``torch.compile``.

    It is for inference: results have no gradients. The range of a varying size is the one that Dynamo knows
    (``mark_dynamic``), or reaches to 4 times that of the compiling call, at least 16; beyond that, Dynamo compiles
    again. Weights that were changed or replaced since the last call are refitted first. What cannot be captured runs
    in PyTorch, with a warning; with ``fullgraph=True`` or ``require_full_compilation`` it is an error.

    Args:
        compile: the pipeline for each graph; ``pipeline.default()`` if None. The ``options`` of ``torch.compile``
            override its settings, and so does ``mode``, by torch's names: ``"reduce-overhead"`` is ``cuda_graphs``,
            ``"max-autotune"`` the highest ``optimization_level`` too.
        executor: where engines run, as in ``Compiled.module``.

    Raises:
        TypeError: the pipeline does not lead from ``Program`` to ``Compiled``.
    """
    stages = default() if compile is None else compile
    if not (accepts(stages.takes, Program) and accepts(Compiled, stages.gives)):
        raise TypeError(f"a backend needs a pipeline from Program to Compiled, not\n{stages!r}")
    return Backend(stages, executor)


@define(eq=False, repr=False)
class Backend:
    """A backend of ``torch.compile``, with a count of what it compiled."""

    stages: Pipeline[Program, Compiled]
    executor: Executor | None
    compiled: int = field(default=0, init=False)
    refused: Counter[str] = field(factory=Counter, init=False)
    __name__ = "pipeline"

    def __call__(
        self,
        graph_module: GraphModule,
        example_inputs: Sequence[object],
        *,
        mode: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Function:
        """Compile a graph of Dynamo's."""
        settings = self.stages.settings.evolve(**{**_mode(mode), **(options or {})})
        views = returned_views(graph_module)
        try:
            runner = _runner_of(self.stages, self.executor, views.core, example_inputs, settings)
        except _NotCaptured as refusal:
            self.refuse(refusal)
        self.compiled += 1
        results: Argument = views.results
        return runner if results is None else lambda *args: results(*args, *runner(*args))

    def refuse(self, refusal: _NotCaptured) -> NoReturn:
        """Raise what lets Dynamo break the graph: the rest of it runs in PyTorch."""
        reason = str(refusal)
        self.refused[reason] += 1
        if self.refused[reason] == 1:
            log.warning("torch.compile runs in PyTorch what cannot be captured: %s", reason)
        said_already(reason)
        raise UnsupportedFakeTensorException(reason) from refusal.__cause__

    def report(self) -> str:
        """Return how many graphs were compiled, and how many were not, with each reason."""
        rows = [f"  {reason}" + (f" ({count} times)" if count > 1 else "") for reason, count in self.refused.items()]
        return "\n".join([f"{self.compiled} graphs compiled, {self.refused.total()} not captured", *rows])


class _NotCaptured(Exception):  # noqa: N818 - Dynamo gets another, which lets it break the graph
    """A graph was not captured, for this reason, at this line."""


MODES: Final[Mapping[str, Mapping[str, object]]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "optimization_level": 5},
    "max-autotune-no-cudagraphs": {"optimization_level": 5},
}
"""The settings that a ``mode`` of torch.compile stands for."""


def _mode(mode: str | None) -> Mapping[str, object]:
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(map(repr, MODES))}, not {mode!r}; options are settings of ours")
    return MODES[mode or "default"]


def entry_point(
    graph_module: GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Function:
    """The backend that torch finds by its name: ``torch.compile(model, backend="pipeline", mode=…, options=…)``."""
    return backend()(graph_module, example_inputs, mode=mode, options=options)


def _runner_of(
    compile: Callable[[Program], Compiled],
    executor: Executor | None,
    graph_module: GraphModule,
    example_inputs: Sequence[object],
    settings: CompilationSettings,
) -> _Runner:
    """A graph of Dynamo's compiled for its example, with the guards that it needs."""
    nodes = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    values = dict(zip(nodes, example_inputs, strict=True))
    weights = [node for node, value in values.items() if _is_weight(node, value)]
    with tracing(None):  # else what torch.export guards on its way would be Dynamo's guards
        graph = DynamoGraph(graph_module, values, weights)
        program = graph.program(settings)
        if written := set(program.buffers.values()):  # those are inputs, which are written back
            graph = DynamoGraph(graph_module, values, [node for node in weights if node.name not in written])
            program = graph.program(settings)
        made = compile(program)
    graph.guard(program)
    at = {node: i for i, node in enumerate(nodes)}
    places = {n.name: at[n] for n in graph.weights}, [at[n] for n in graph.inputs]
    runner = _Runner(made, *places, executor, graph_module.forward, written_inputs(program))
    runner.load(example_inputs)
    return runner


class DynamoGraph(torch.nn.Module):
    """Dynamo's graph with its weights and floats inside, called with the tensors and whole numbers that remain.

    values: for each argument of Dynamo's graph its value in the call that compiles.
    """

    def __init__(self, graph_module: GraphModule, values: Mapping[Node, Argument], weights: Sequence[Node]) -> None:
        super().__init__()
        self.training = False
        self.values, self.weights = values, weights
        self.calls = _Calls(graph_module)
        for node in weights:
            self.register_buffer(node.name, values[node])
        self.numbers: dict[Node, float] = {n: number for n in values if (number := _item(n)) is not None}
        rest = [node for node in values if node not in weights and node not in self.numbers]
        self.places = {
            str(size): (node, dim)
            for node in rest
            if isinstance(values[node], torch.Tensor)
            for dim, size in enumerate(_sizes(node))
        }
        self.numbers |= {node: int(values[node]) for node in rest if not _is_free(values[node])}
        self.inputs = [node for node in rest if node not in self.numbers and str(values[node]) not in self.places]

    def forward(self, *inputs: object) -> Any:
        """Compute the results of Dynamo's graph."""
        known = dict(zip(self.inputs, inputs, strict=True))
        return self.calls.run(*(self.given(node, known) for node in self.values))

    def given(self, node: Node, known: Mapping[Node, Argument]) -> Any:
        """The value of one of Dynamo's arguments."""
        if node in known:
            return known[node]
        if node in self.numbers:
            return self.numbers[node]
        if node in self.weights:
            return getattr(self, node.name)
        tensor, dim = self.places[str(self.values[node])]
        return known[tensor].shape[dim]

    def program(self, settings: CompilationSettings) -> Program:
        """The graph, captured with the ranges of its sizes."""
        dims: dict[str, Any] = {}
        shapes = tuple(_dims(node, dims) for node in self.inputs)
        examples = [_hint(self.values[node]) for node in self.inputs]
        try:
            return capture(self, examples, dynamic_shapes=(shapes,) if shapes else None, settings=settings)
        except PipelineError as error:
            if settings.require_full_compilation:
                raise
            place = _place_of(error)
            raise _NotCaptured(error.message.partition("\n")[0] + (place and f" ({place})")) from error

    def guard(self, program: Program) -> None:
        """Let Dynamo guard the program's conditions on sizes: comparing one of Dynamo's sizes guards it."""
        known: dict[str, Argument] = {}
        for port, node in zip(program.inputs, self.inputs, strict=True):
            exprs = port.shape if port.kind == "tensor" else (port.value,)
            for expr, size, ends in zip(exprs, _sizes(node), port.ranges, strict=True):
                known[str(expr)] = size
                bool(size >= ends.min)
                bool(size <= ends.max)
        for relation in program.shapes.relations:
            if relation.symbols <= known.keys():
                relation.holds(known)


class _Calls(Interpreter):
    """Dynamo's graph, run node by node: each knows the user's line that it comes from."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        transforms = any(node.target in _DERIVATIVES for node in module.graph.nodes)
        self.mode = torch.enable_grad if transforms else nullcontext

    def run(self, *args: Argument) -> Any:
        """Compute the results. Derivatives, which ``torch.func`` takes in the graph, are those of no ``no_grad``."""
        with provenance.preserve_node_meta(), self.mode():
            return super().run(*args)

    def run_node(self, n: Node) -> Any:
        """Compute a node."""
        provenance.get_current_meta().update({"stack_trace": n.stack_trace} if n.stack_trace else {})
        try:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return getattr(self, n.op)(n.target, args, kwargs)
        except Exception as error:
            setattr(error, _PLACE, source_line(n))
            raise


_PLACE: Final = "_pipeline_place"
"""The attribute of an exception with the user's line that failed."""


def _place_of(error: BaseException | None) -> str:
    """The user's line at which an error, or what caused it, was raised; empty if unknown."""
    while error is not None and not hasattr(error, _PLACE):
        error = error.__cause__
    return getattr(error, _PLACE, "")


@define(eq=False)
class _Runner:
    """The callable for Dynamo: a compiled graph, whose weights follow those of the calls.

    weights, inputs: where they are among Dynamo's arguments.
    calls: Dynamo's graph, for calls in which an input that is written to, one of ``written``, lies in the memory of
        another input or of a weight.
    held, counted, versions: the weights that are compiled, those whose writes torch counts, and how many it counted.
    """

    compiled: Compiled
    weights: Mapping[str, int]
    inputs: Sequence[int]
    executor: Executor | None
    calls: Function
    written: Sequence[int]
    module: Any = None
    held: Sequence[torch.Tensor] = ()
    counted: Sequence[torch.Tensor] = ()
    versions: Sequence[int] = ()

    def load(self, args: Sequence[Argument]) -> None:
        """Make a module of the compiled program, and note its weights."""
        self.held = [args[i] for i in self.weights.values()]
        self.counted = [weight for weight in self.held if not weight.is_inference()]
        self.versions = list(map(_writes, self.counted))
        self.module = self.compiled.module(self.executor)

    def __call__(self, *args: Argument) -> Any:
        now = [args[i] for i in self.weights.values()]
        given = [args[i] for i in self.inputs]
        if self.written and shared(self.written, [*given, *now]):
            return self.calls(*args)
        if not all(map(is_, now, self.held)) or list(map(_writes, self.counted)) != self.versions:
            self.compiled = refit_module_weights(self.compiled, dict(zip(self.weights, now, strict=True)))
            self.load(args)
        return self.module(*given)


_writes = attrgetter("_version")


_DERIVATIVES: Final = (_functorch._grad_increment_nesting, _functorch._jvp_increment_nesting)
"""The calls by which a graph of Dynamo's begins to take derivatives."""


class _Number(float):
    """A float in place of the tensor that Dynamo passes for it."""

    def item(self) -> float:
        """The number."""
        return float(self)


class _Whole(int):
    """A whole number in place of such a tensor."""

    def item(self) -> int:
        """The number."""
        return int(self)


def _is_weight(node: Node, value: object) -> bool:
    """Parameters, and buffers, by the names that Dynamo gives them: other tensors may be at fixed addresses too."""
    fixed = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
    return isinstance(value, torch.nn.Parameter) or (fixed and "buffers_" in node.name)


def _item(node: Node) -> float | int | None:
    """The number that a 0-d tensor stands for, None if it is a tensor; Dynamo guards it from here on."""
    if node.meta.get("tensor_dict") is not None:  # only what was no tensor has none
        return None
    items: list[Any] = [user.meta.get("example_value") for user in node.users if user.target == "item"]
    if items:
        return _Whole(items[0]) if isinstance(items[0], torch.SymInt | int) else _Number(items[0])
    size = getattr(node.meta["example_value"], "item_memo", None)  # a whole number of numpy's, as in torch.split
    is_read = isinstance(size, torch.SymInt) and all(_is_beside_a_tensor(node, user) for user in node.users)
    return int(size) if is_read and size.node.has_hint() else None


def _is_beside_a_tensor(number: Node, user: Node) -> bool:
    """Whether a node computes with a tensor and a number, so that the number need be no tensor."""
    tensors = (n for n in user.all_input_nodes if isinstance(n.meta.get("example_value"), torch.Tensor))
    return any(n is not number and n.meta["example_value"].ndim for n in tensors)


def _sizes(node: Node) -> Sequence[Any]:
    """The sizes of an input as Dynamo knows them, or the number that it is."""
    value = node.meta["example_value"]
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)


def _is_free(value: object) -> bool:
    """Whether it is a tensor or a number that varies. One below 2 does not: torch takes 0 and 1 to be special."""
    return isinstance(value, torch.Tensor) or (isinstance(value, torch.SymInt) and _hint(value) > 1)


def _hint(value: object) -> Any:
    return value.node.hint if isinstance(value, torch.SymInt) else value


def _dims(node: Node, dims: dict[str, Any]) -> object:
    """torch.export's dims for an input; a symbol of Dynamo's is one dim, wherever it occurs."""
    if not isinstance(node.meta["example_value"], torch.Tensor):
        return Dim.DYNAMIC
    sizes = {dim: size for dim, size in enumerate(_sizes(node)) if isinstance(size, torch.SymInt)}
    return {dim: dims.setdefault(str(size), _dim(size)) for dim, size in sizes.items() if size.node.expr.is_Symbol}


def _dim(size: torch.SymInt) -> Dim:
    """The range that Dynamo knows, or else the default of a dim without an upper bound."""
    ends = size.node.shape_env.bound_sympy(size.node.expr)
    high = int(ends.upper) if ends.upper.is_Integer else max(UNBOUNDED_FACTOR * _hint(size), 16)
    return Dim(str(size), min=int(ends.lower), max=high)
