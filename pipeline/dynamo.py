"""``pipeline.backend``: a backend of ``torch.compile``, which compiles each graph that Dynamo traces.

Dynamo passes a model's parameters, buffers, dynamic sizes and floats as inputs of the graph. The backend turns
parameters and buffers into weights again, reads sizes from the tensors, and makes floats constants of the program. It
returns the program's conditions on sizes to Dynamo as guards: a call that violates a guard recompiles.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from operator import is_
from typing import Any, Final, get_args

import torch
from attrs import define, evolve, field
from torch._guards import tracing
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException
from torch.fx import GraphModule, Node

from pipeline.artifact.refit import refit_module_weights
from pipeline.aten.types import Argument, Function
from pipeline.capture.dynamo_graph import DynamoGraph, NotCapturedError
from pipeline.capture.returned_views import split_returned_views
from pipeline.compiled import Compiled, Executor
from pipeline.compose.pipelines import Pipeline
from pipeline.compose.stage_signature import accepts_type
from pipeline.defaults import add_precision_stage, default
from pipeline.export_fixes.export_steps import suppress_repeated_warning
from pipeline.program import Program
from pipeline.records.wording import kind_of
from pipeline.runtime.data_writes import DataWrites, watch_data_writes
from pipeline.runtime.memory_overlap import find_overlap, mutated_input_indices

log = logging.getLogger(__name__)


def backend(compile: Pipeline[Program, Compiled] | None = None, *, executor: Executor | None = None) -> Backend:
    """Return a backend of ``torch.compile``.

    The backend is for inference: results have no gradients. The range of a dynamic size is the one that Dynamo knows
    (``mark_dynamic``); otherwise its maximum is 4 times the size in the compiling call, at least 16, and Dynamo
    recompiles for larger sizes. Weights that were changed or replaced since the last call are refitted first. Graphs
    that cannot be captured run in PyTorch, with a warning; with ``fullgraph=True`` or ``require_full_compilation`` they
    raise an error.

    Args:
        compile: the pipeline for each graph; ``pipeline.default()`` if None. The ``options`` and ``mode`` of
            ``torch.compile`` override its settings: the mode ``"reduce-overhead"`` sets ``cuda_graphs``,
            ``"max-autotune"`` also sets the highest ``optimization_level``. The option ``precision`` means the same as
            for ``pipeline.default``.
        executor: where engines run, as in ``Compiled.module``.

    Raises:
        TypeError: the pipeline does not lead from ``Program`` to ``Compiled``.
    """
    stages = default() if compile is None else compile
    if not isinstance(stages, Pipeline):
        due = 'pipeline.backend(pipeline.default(settings)), or torch.compile(model, backend="pipeline", options={…})'
        raise TypeError(f"pipeline.backend takes a pipeline, got {kind_of(stages)}: write {due}")
    if executor not in (None, *get_args(Executor)):
        known = ", ".join(map(repr, get_args(Executor)))
        raise ValueError(f"executor must be one of {known} or None, got {executor!r}")
    if not (accepts_type(stages.takes, Program) and accepts_type(Compiled, stages.gives)):
        raise TypeError(f"a backend needs a pipeline that takes a Program and returns a Compiled, got\n{stages!r}")
    return Backend(stages, executor)


@define(eq=False, repr=False)
class Backend:
    """A backend of ``torch.compile``, with counts of the graphs that it compiled and refused."""

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
        """Compile a graph that Dynamo traced."""
        if options is not None and not isinstance(options, Mapping):
            due = "pass a dict of settings, as options={'min_block_size': 1}"
            raise TypeError(f"options is {kind_of(options)}: {due}")
        if mode is not None and mode not in MODES:
            known = ", ".join(map(repr, MODES))
            raise ValueError(f"mode must be one of {known}, got {mode!r}; settings of pipeline go in options={{…}}")
        stages, fields = self.stages, dict[str, Any]({**MODES[mode or "default"], **(options or {})})
        if "precision" in fields:
            stages = add_precision_stage(stages, fields.pop("precision"))
        stages = evolve(stages, settings=stages.settings.evolve(**fields))
        if torch.is_grad_enabled() and any(map(_needs_gradient, example_inputs)):
            self.count_and_warn("an input requires a gradient, which engines cannot compute (use torch.no_grad())")
            return graph_module.forward
        views = split_returned_views(graph_module)
        try:
            runner = _compile_runner(stages, self.executor, views.core, example_inputs)
        except NotCapturedError as refusal:
            self.count_and_warn(str(refusal))
            suppress_repeated_warning(str(refusal))  # Dynamo then breaks the graph: the rest of it runs in PyTorch
            raise UnsupportedFakeTensorException(str(refusal)) from refusal.__cause__
        self.compiled += 1
        results: Argument = views.results
        return runner if results is None else lambda *args: results(*args, *runner(*args))

    def count_and_warn(self, reason: str) -> None:
        """Count in ``refused`` a graph that runs in PyTorch for this reason; warn if the reason is new."""
        self.refused[reason] += 1
        if self.refused[reason] == 1:
            log.warning("torch.compile runs a graph in PyTorch, without TensorRT: %s", reason)

    def report(self) -> str:
        """Return how many graphs were compiled, and how many run in PyTorch, with each reason."""
        rows = [f"  {reason}" + (f" ({count} times)" if count > 1 else "") for reason, count in self.refused.items()]
        return "\n".join([f"{self.compiled} graphs compiled, {self.refused.total()} in PyTorch", *rows])


def _needs_gradient(graph_input: object) -> bool:
    """Return whether a graph input needs a gradient: a leaf tensor with ``requires_grad`` that is no parameter."""
    if not isinstance(graph_input, torch.Tensor) or isinstance(graph_input, torch.nn.Parameter):
        return False
    return graph_input.requires_grad and graph_input.is_leaf


MODES: Final[Mapping[str, Mapping[str, object]]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "optimization_level": 5},
    "max-autotune-no-cudagraphs": {"optimization_level": 5},
}
"""The settings that each ``mode`` of torch.compile sets."""


def entry_point(
    graph_module: GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Function:
    """Compile a graph, as the backend of ``torch.compile(model, backend="pipeline", mode=…, options=…)``."""
    return backend()(graph_module, example_inputs, mode=mode, options=options)


def _compile_runner(
    compile: Pipeline[Program, Compiled],
    executor: Executor | None,
    graph_module: GraphModule,
    example_inputs: Sequence[object],
) -> _Runner:
    """Compile one of Dynamo's graphs for its example inputs; return a callable that runs it, and add the program's
    conditions on sizes to Dynamo's guards."""
    nodes = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    values = dict(zip(nodes, example_inputs, strict=True))
    weights = [node for node, value in values.items() if _is_weight(node, value)]
    with tracing(None):  # else guards that torch.export adds would become Dynamo's guards
        graph = DynamoGraph(graph_module, values, weights)
        program = graph.capture_program(compile.settings)
        if written := set(program.buffers.values()):  # those are inputs, which are written back
            graph = DynamoGraph(graph_module, values, [node for node in weights if node.name not in written])
            program = graph.capture_program(compile.settings)
        made = compile(program)
    graph.add_size_guards(program)
    at = {node: i for i, node in enumerate(nodes)}
    places = {n.name: at[n] for n in graph.weights}, [at[n] for n in graph.inputs]
    runner = _Runner(made, *places, executor, graph_module.forward, mutated_input_indices(program))
    runner.create_module(example_inputs)
    return runner


@define(eq=False)
class _Runner:
    """The callable that Dynamo receives for a compiled graph. A call with changed weights refits the program first.

    weights, inputs: the indices of weights and of other inputs among the arguments that Dynamo passes.
    run_in_torch: runs Dynamo's graph in PyTorch, for calls in which a mutated input (indices ``written``) shares memory
        with another input.
    held: the weights that ``module`` was created with.
    watched, counts: the weights whose writes are counted (by torch's version counter and through ``.data``), and these
        counts when ``module`` was created.
    """

    compiled: Compiled
    weights: Mapping[str, int]
    inputs: Sequence[int]
    executor: Executor | None
    run_in_torch: Function
    written: Sequence[int]
    module: Any = None
    held: Sequence[torch.Tensor] = ()
    watched: Sequence[tuple[torch.Tensor, DataWrites]] = ()
    counts: Sequence[tuple[int, object]] = ()

    def create_module(self, args: Sequence[Argument]) -> None:
        """Create a module; store the weights in a call's ``args`` and their write counts, to detect later changes."""
        self.held = [args[i] for i in self.weights.values()]
        self.watched = [(weight, watch_data_writes(weight)) for weight in self.held if not weight.is_inference()]
        self.counts = self.count_writes_per_weight()
        self.module = self.compiled.module(self.executor)

    def __call__(self, *args: Argument) -> Any:
        now = [args[i] for i in self.weights.values()]
        given = [args[i] for i in self.inputs]
        if self.written and find_overlap(self.written, [*given, *now]):
            return self.run_in_torch(*args)
        if not all(map(is_, now, self.held)) or self.count_writes_per_weight() != self.counts:
            self.compiled = refit_module_weights(self.compiled, dict(zip(self.weights, now, strict=True)))
            self.create_module(args)
        with torch.no_grad() if self.written else nullcontext():  # the graph has its own, around what it writes
            return self.module(*given)

    def count_writes_per_weight(self) -> list[tuple[int, object]]:
        """Return for each weight two counts of writes: torch's version counter, and the writes through ``.data``."""
        return [(weight._version, data.count) for weight, data in self.watched]


def _is_weight(placeholder: Node, value: object) -> bool:
    """Return whether an argument of Dynamo's graph is a parameter or buffer, by its name in the graph."""
    fixed = "_dynamo_static_input_type" in (placeholder.meta.get("tensor_dict") or {})
    return isinstance(value, torch.nn.Parameter) or (fixed and "buffers_" in placeholder.name)
