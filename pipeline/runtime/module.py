"""``ProgramModule``: a compiled program as an ``nn.Module``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch.utils._pytree import tree_unflatten

from pipeline.aten.tracing_thread import is_tracing
from pipeline.aten.types import Leaf, Spec
from pipeline.compiled import Compiled, CompiledModule, Executor
from pipeline.errors import ExecutionError
from pipeline.network.engine import Engine
from pipeline.program import Program, Segment
from pipeline.recipes import Recipe
from pipeline.runtime.autocast_context import is_autocast_on, without_autocast
from pipeline.runtime.call_memory import CallLimit
from pipeline.runtime.call_plan import ON_CPU, CallPlan, Layout, LayoutBuilder, RunOptions, SegmentRunner
from pipeline.runtime.cuda_graphs import CudaGraphs
from pipeline.runtime.cuda_worker import CudaWorker
from pipeline.runtime.engine_buffers import ALIGNMENT
from pipeline.runtime.engine_cache import RuntimeCache
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.inputs import ConstantInputs, bind_symbols, child_specs, find_profile, flatten_inputs
from pipeline.runtime.memory_overlap import check_no_overlap, mutated_input_indices
from pipeline.runtime.opened_file import FileWeights, check_files, raise_call_error, source_file_name
from pipeline.runtime.program_engines import compile_kernels, load_engine, network_weights, process_group_of
from pipeline.runtime.ranks import Ranks
from pipeline.runtime.reference import ReferenceEngine
from pipeline.runtime.replay_fast_path import FastReplay
from pipeline.runtime.snapshot import Snapshot, Unchanged, without_parameters
from pipeline.runtime.state import InitialValue, attach_buffer, buffer_views, find_buffer, make_position_guard
from pipeline.runtime.torch_segment import torch_segment
from pipeline.runtime.worker import Pool, SegmentExecutor
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import evaluate_number
from pipeline.trt import CAPABILITIES, LIBRARY, has_gpu

log = logging.getLogger(__name__)

Worker: TypeAlias = SegmentExecutor | CudaWorker
is_compiling, is_dynamo_compiling = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
PLANS = 256
"""The maximum number of call plans that a module caches: one for each combination of input shapes."""


class ProgramModule(CompiledModule):
    """The module of a compiled program: it checks inputs, finds the plan for their shapes, and runs the segments."""

    entry: Callable[[ProgramModule, tuple[Leaf, ...], Mapping[str, Leaf]], Leaf] | None = None
    """The function that torch.compile and torch.export trace instead of ``forward``."""

    def __init__(
        self,
        compiled: Compiled,
        executor: Executor | None = None,
        settings: CompilationSettings | None = None,
        shared: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Load a program. ``executor``: "tensorrt", "reference" (CPU), or None: "tensorrt" if it can run the engines.
        ``settings``: None for those of ``compiled``. ``shared``: a dict to read constants from and add them to: modules
        of one model with equal settings can use the same dict."""
        super().__init__()
        self.compiled, self.settings = without_parameters(compiled), settings or compiled.settings
        self.executor: Executor = executor or _default_executor(compiled.engines)
        if self.executor == "tensorrt" and not has_gpu():
            raise ExecutionError("TensorRT engines need a GPU, but torch finds none on this machine")
        check_files(compiled.program.parameters)
        on_gpu = self.executor == "tensorrt"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.program: Program = self.compiled.program
        weights = Snapshot(compiled.program)
        self._initial = {name: InitialValue.from_tensor(weights[name]) for name in self.program.buffers.values()}
        self._attach_state()
        self._layout = LayoutBuilder(self.program, compiled.partitioned.segments).build()
        unchanged = Unchanged(compiled.program)
        copied = self.settings.copy_weights or isinstance(compiled.program.parameters, FileWeights)
        weight = partial(_load_weight, unchanged, self.device)
        shared = {} if shared is None else shared
        constant = partial(_get_or_make_constant, shared, partial(weight, copied), self.program.constants)
        self._weights = {slot: constant(name) for slot, name in self._layout.weights.items()}
        returned = {o.value for o in self.program.outputs if not o.constant and o.value in self.program.constants}
        own = {self._layout.slots[name]: weight(True, self.program.constants[name]) for name in returned}
        self._constants = {self.device: own}
        folder = self.settings.runtime_cache
        self._kernels = RuntimeCache.open(compiled.networks, folder, compiled.kernels) if on_gpu else None
        loaded: dict[str, LoadedEngine] = {}
        self._parts = [self._make_runner(compiled, s, weights, constant, loaded) for s in compiled.partitioned.segments]
        compile_kernels(self._parts, self._kernels)
        # `make` must not reference this module: a cycle would keep GPU memory until the garbage collector runs.
        make = partial(_make_worker, self._layout, self._parts, self.device, self.executor, self.settings)
        self._workers: Pool[Worker] = Pool(make, self.settings.execution_contexts)
        self._workers.give(self._workers.take())  # fail now rather than at the first call
        check_files(compiled.program.parameters)  # again: the weights were read meanwhile
        self._written, self._same = mutated_input_indices(self.program), ConstantInputs(self.program)
        self._file = source_file_name(compiled.program.parameters)
        self._bound = CallLimit.from_file(compiled.program.parameters, compiled.program, once=on_gpu)
        self._names = _input_names_if_flat(self.program.in_spec)
        self._rebuild_outputs = _output_rebuilder(self.program.out_spec)

    def _make_runner(
        self,
        compiled: Compiled,
        segment: Segment,
        parameters: Mapping[str, torch.Tensor],
        get_constant: Callable[[str], torch.Tensor],
        loaded_by_digest: dict[str, LoadedEngine],
    ) -> SegmentRunner | LoadedEngine:
        """Return what runs a segment in all workers: a function, or an engine for which each worker creates a context.
        ``get_constant``: returns a constant of the program by its name. ``loaded_by_digest``: the engines loaded so
        far, by digest; segments with equal plans share an engine."""
        if segment.kind == "torch":
            on_gpu = self.executor == "tensorrt"
            mode = self.settings.torch_compile if on_gpu else None
            in_graph = on_gpu and (self.settings.cuda_graphs or compiled.settings.cuda_graphs)
            return torch_segment(self.program, segment, get_constant, self.device, mode, in_cuda_graph=in_graph)
        index = [s.name for s in compiled.partitioned.engine_segments].index(segment.name)
        if self.executor == "reference":
            return _reference_runner(compiled, index, parameters)
        engine = compiled.engines[index]
        if engine.digest in loaded_by_digest and not engine.stripped:
            return loaded_by_digest[engine.digest].for_network(engine, compiled.networks[index])
        loaded_now = load_engine(compiled, index, self.settings, self._kernels, parameters)
        return loaded_by_digest.setdefault(engine.digest, loaded_now) if engine.digest else loaded_now

    def _attach_state(self) -> None:
        """Create the updated buffers with initial values; drop each `CallPlan`, since it refers to older buffers."""
        for name, initial in self._initial.items():
            attach_buffer(self, name, initial.new_tensor(self.device))
        self._guard = make_position_guard(self.program, self)
        self._plans: dict[object, CallPlan] = {}
        self._fast_replay: FastReplay | None = None
        self._ranks = Ranks.for_program(self.program)
        if self._ranks is not None:
            self._ranks.attach_to(self, on_gpu=self.executor == "tensorrt")

    def reset(self) -> None:
        """Restore the buffers in place to their values at compilation; clear errors about KV cache positions."""
        with torch.no_grad():
            for name, initial in self._initial.items():
                initial.write(find_buffer(self, name))
        if self._guard is not None:
            self._guard.clear()

    def new_state(self) -> ProgramModule:
        """Return a module that shares the engines and weights, and has separate buffers with their initial values."""
        module = self.__class__.__new__(self.__class__)
        torch.nn.Module.__init__(module)
        own = {*module.__dict__, "_guard", "_plans", "_fast_replay"}
        module.__dict__.update({name: value for name, value in self.__dict__.items() if name not in own})
        module._attach_state()
        return module

    def forward(self, *args: object, **kwargs: object) -> Leaf:
        if is_compiling() and self.entry is not None and (is_dynamo_compiling() or is_tracing()):
            return self.entry(self, args, kwargs)
        if is_autocast_on():
            with without_autocast():
                return self.forward(*args, **kwargs)
        if self._guard is not None:
            self._guard.check()
        fast_replay = self._fast_replay
        results = None if fast_replay is None else fast_replay(args, kwargs, self._workers)
        if results is None:
            leaves, plan = self._find_plan(args, kwargs)
            if self._written:
                check_no_overlap(self.program, self._written, leaves)
            results = self._run(plan, leaves)
        if self._ranks is not None:
            self._ranks.watch_launch()
        return self._rebuild_outputs(results)

    def _run(self, plan: CallPlan, leaves: Sequence[object]) -> list[Leaf]:
        """Return the outputs of a call, and prepare a fast replay for the next call with such inputs."""
        worker = self._workers.take()
        try:
            results = worker(plan, leaves) if self._bound is None else self._bound(worker, plan, leaves)
            if self._kernels is not None and self._kernels.may_have_new:
                self._kernels.save()
            if self._names is not None and self.settings.cuda_graphs and not (self._written or self._same):
                self._fast_replay = FastReplay.for_last_call(self._names, plan, leaves, worker)
            return results
        except Exception as error:
            raise_call_error(self._file, error, error if self._ranks is None else self._ranks.add_rank_to_error(error))
        finally:
            self._workers.give(worker)

    def instrument(self, wrap: Callable[[Segment, SegmentRunner], SegmentRunner]) -> None:
        """Replace each segment's runner by ``wrap(segment, runner)`` for measurements, in sequential calls only."""
        worker = self._workers.take()
        (worker.executor if isinstance(worker, CudaWorker) else worker).instrument(wrap)
        self._workers.give(worker)

    @property
    def refused_graphs(self) -> tuple[str, ...]:
        """The reasons why calls of this module run without a CUDA graph although ``cuda_graphs=True`` requested one."""
        worker = self._workers.take()
        try:
            graphs = worker.graphs if isinstance(worker, CudaWorker) else None
            return tuple(graphs.refused.values()) if graphs is not None else ()
        finally:
            self._workers.give(worker)

    def _find_plan(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[Sequence[object], CallPlan]:
        """Return a call's inputs in order, and its plan: cached for these shapes, or created after all checks."""
        names = self._names
        if names is not None and len(args) == names[0] and len(kwargs) == len(names[1]):
            try:
                leaves = [*args, *[kwargs[name] for name in names[1]]] if kwargs else args
                plan = self._plans[_plan_key(leaves)]
                if not self._same or self._same.match(leaves):
                    return leaves, plan
            except (KeyError, TypeError):
                pass  # another structure, a new shape, or an unhashable input
        given = flatten_inputs(self.program, args, kwargs)
        key = _plan_key(given)
        try:
            known = self._plans.get(key)
        except TypeError:
            return given, self._make_plan(given)
        if known is None:
            known = self._make_plan(given)
            while len(self._plans) >= PLANS:
                self._plans.pop(next(iter(self._plans)), None)
            self._plans[key] = known
        return given, known

    def _make_plan(self, inputs: Sequence[Leaf]) -> CallPlan:
        """Return the plan of a call with these inputs; an error names the file that the program was loaded from."""
        try:
            return self._compute_plan(inputs)
        except Exception as error:
            raise_call_error(self._file, error, error)

    def _compute_plan(self, inputs: Sequence[Leaf]) -> CallPlan:
        """Check the sizes of these inputs, and return the plan for all calls with inputs of these sizes."""
        if self._ranks is not None:
            self._ranks.check_same_shapes(inputs)
        symbols, layout = bind_symbols(self.program, inputs), self._layout
        home = self._output_device(inputs)
        template: list[Leaf] = [None] * len(layout.slots)
        for slot, value in {**layout.constants, **self._weights, **self._output_constants_on(home)}.items():
            template[slot] = value
        for slot, expr in layout.sizes.items():
            template[slot] = evaluate_number(expr, symbols)
        for name, value in buffer_views(self.program, self, symbols):
            template[layout.slots[name]] = value
        moves = []
        for position, (port, value) in enumerate(zip(self.program.inputs, inputs, strict=True)):
            slot = layout.slots[port.name]
            if port.kind == "tensor":
                narrowed = value.dtype == torch.float64 and self.program.settings.truncate_double
                moves.append((position, slot, value.device != self.device or narrowed))
            else:
                template[slot] = value
        profile = find_profile(self.program, symbols)
        return CallPlan(template, symbols, profile, tuple(moves), None if home == self.device else home, self._guard)

    def _output_device(self, inputs: Sequence[object]) -> torch.device:
        """Return the device of outputs: a GPU input's, else the CPU; without tensor inputs, the capture's device."""
        devices = [value.device for value in inputs if isinstance(value, torch.Tensor)]
        if not devices:
            return torch.device("cpu") if self._layout.on_cpu else self.device
        return next((device for device in devices if device.type != "cpu"), devices[0])

    def _output_constants_on(self, device: torch.device) -> Mapping[int, torch.Tensor]:
        """Return the outputs that are constants, by slot, on the device of outputs; all calls return the same ones."""
        if device not in self._constants:
            own = self._constants[self.device]
            self._constants.setdefault(device, {slot: value.to(device) for slot, value in own.items()})
        return self._constants[device]

    def __reduce__(self) -> Leaf:
        raise TypeError("a CompiledModule holds engines and cannot be copied or pickled: call compiled.module() again")

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> ProgramModule:
        """Apply ``.to``, ``.cuda`` or ``.half`` if it keeps the dtype and the device, which engines cannot change.
        It may still replace buffers, so call plans and CUDA graphs, which refer to the old ones, are dropped.

        Raises:
            ExecutionError: the dtype or device would change.
        """
        there = fn(torch.empty(0, device=self.device))
        if (there.dtype, there.device) != (torch.float32, self.device):
            new = f"device {there.device}" if there.dtype == torch.float32 else str(there.dtype).removeprefix("torch.")
            hint = "compile the model in that dtype (model.half()), or make a module there: compiled.module(executor=…)"
            raise ExecutionError(f"a compiled module cannot change its dtypes or device ({self.device}) to {new}", hint)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._guard = make_position_guard(self.program, self)
        self._plans.clear()
        self._fast_replay = None
        self._workers.clear()
        return self


def _get_or_make_constant(
    shared: dict[str, torch.Tensor], make: Callable[[Recipe], torch.Tensor], recipes: Mapping[str, Recipe], name: str
) -> torch.Tensor:
    """Return the constant ``name`` of a program, computed by ``make`` from its recipe (the steps that compute it).
    Constants with equal recipes are the same tensor, stored in ``shared``."""
    recipe = recipes[name]
    return shared[key] if (key := f"{recipe} {recipe.dtype}") in shared else shared.setdefault(key, make(recipe))


def _load_weight(parameters: Unchanged, device: torch.device, copied: bool, recipe: Recipe) -> torch.Tensor:
    """Compute a weight that segments read in place; on a GPU its address is aligned as TensorRT requires.

    copied: whether the weight must not share memory with a parameter. recipe: how to compute it from parameters.
    """
    value = recipe.evaluate_on(device, parameters, copied=copied)
    apart = value.is_cuda and value.layout == torch.strided and value.data_ptr() % ALIGNMENT
    return value.clone() if apart else value


def _plan_key(leaves: Sequence[object]) -> object:
    """Return the cache key of a call plan: the shapes, dtypes, devices and layouts of tensors, and all other inputs."""
    known = torch.Tensor
    return tuple([(v.shape, v.dtype, v.device, v.layout) if isinstance(v, known) else (type(v), v) for v in leaves])


def _input_names_if_flat(spec: object) -> tuple[int, tuple[str, ...]] | None:
    """Return the number of positional inputs and the names of keyword inputs; None if an input is a container."""
    positional, named = child_specs(spec)
    if any(c.num_leaves != 1 or c.num_children for c in (*child_specs(positional), *child_specs(named))):
        return None
    return positional.num_children, tuple(named.context or ())


def _output_rebuilder(spec: Spec) -> Callable[[list[Leaf]], Leaf]:
    """Return a function that puts outputs into the model's output structure; it avoids pytree for a tensor or tuple."""
    if spec.num_leaves == 1 and not spec.num_children:
        return lambda results: results[0]
    if spec.type is tuple and all(c.num_leaves == 1 and not c.num_children for c in child_specs(spec)):
        return tuple
    return lambda results: tree_unflatten(results, spec)


def _default_executor(engines: Sequence[Engine]) -> Executor:
    if not has_gpu():
        log.info("no GPU here: engines run on the CPU reference executor")
        return "reference"
    other = next((e.library for e in engines if e.library.split(" ")[0] != CAPABILITIES.flavour), None)
    if other is None:
        return "tensorrt"
    log.warning("engines were built by %s, not %s: the CPU reference executor runs them", other, LIBRARY)
    return "reference"


def _make_worker(
    layout: Layout, parts: Sequence[Leaf], device: torch.device, executor: Executor, settings: CompilationSettings
) -> Worker:
    """Return a worker, which runs one call of a program at a time, on the CPU (``executor="reference"``) or a GPU.
    ``parts``: each segment's function or loaded engine."""
    if executor == "reference":
        return SegmentExecutor(layout, parts, device)
    graphs = CudaGraphs(settings.max_cuda_graphs, settings.reuse_outputs) if settings.cuda_graphs else None
    return CudaWorker(layout, parts, device, settings, graphs)


def _reference_runner(compiled: Compiled, index: int, parameters: Mapping[str, torch.Tensor]) -> SegmentRunner:
    """Return a function that runs engine number ``index`` on the CPU, by PyTorch code for each TensorRT layer."""
    network = compiled.networks[index]
    engine = ReferenceEngine(network, network_weights(compiled, network, parameters), process_group_of(compiled, index))

    def run(inputs: list[Leaf], options: RunOptions = ON_CPU) -> Sequence[torch.Tensor]:
        return engine([torch.as_tensor(v) for v in inputs])

    return run
