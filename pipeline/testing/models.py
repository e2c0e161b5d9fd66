"""``check_model``: compile a whole model, and compare it with eager PyTorch at several sizes."""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from attrs import evolve, frozen
from toolz import unique
from torch.export import Dim
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from pipeline.artifact.engine_cache_stage import cached, engine_requests
from pipeline.artifact.engine_store import DiskStore, EngineStore
from pipeline.artifact.load import load
from pipeline.aten.types import Argument, Leaf, Spec
from pipeline.capture.capture import capture
from pipeline.compiled import Compiled, CompiledModule, Executor
from pipeline.compose.pipelines import Pipeline
from pipeline.defaults import default
from pipeline.errors import ArtifactWarning, CaptureError, PipelineError, ShapeError
from pipeline.frozen import FrozenDict
from pipeline.inputs import Input
from pipeline.program import Built, Converted, Program, is_operator
from pipeline.records.wording import kind_of
from pipeline.runtime.inputs import bind_symbols, flatten_inputs
from pipeline.runtime.state import find_buffer
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import Range
from pipeline.stages.unbuilt import unbuilt
from pipeline.testing import memory
from pipeline.testing.calls import Call, Size, Sizes, TensorSpec, argument_value, dim_size
from pipeline.testing.check import default_executors
from pipeline.testing.compare import describe_outputs_difference
from pipeline.testing.memory import ReturnedInputs, Snapshot, describe_shared_memory

Kind = Literal[
    "compiles", "deterministic", "cached", "saved", "blocks", "runs", "values", "mutation", "aliasing", "changed"
]
Entry = Literal["dims", "inputs", "exported"]
Arguments = tuple[tuple[Leaf, ...], dict[str, Leaf]]


class ModelError(PipelineError, AssertionError):
    """A compiled model fails a check of ``check_model``: ``kind`` is the property that failed."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.args = (kind, message)

    def __str__(self) -> str:
        """Return the failed property and the error message."""
        return f"{self.kind}: {self.message}"


@frozen
class Model:
    """A model to test: the function that creates it, and its arguments with named sizes.

    args, kwargs: pytrees of ``TensorSpec`` and plain values. sizes: the values of the names in shapes.
    """

    make: Callable[[], torch.nn.Module]
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]
    sizes: FrozenDict[str, Range]

    def create(self) -> torch.nn.Module:
        """Create the model in evaluation mode, with the same weights in every call."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.make().eval()

    def sizes_at(self, end: Literal["min", "opt", "max"]) -> dict[str, int]:
        """Return the minimum, optimal (as of the example inputs) or maximum value of each named size."""
        return {name: getattr(size, end) for name, size in self.sizes.items()}

    @property
    def sizes_to_try(self) -> tuple[dict[str, int], ...]:
        """Return the sizes to test: optimal, smallest and largest, and an intermediate size for each name."""
        between = {n: (r.min + r.max + i % 2) // 2 for i, (n, r) in enumerate(self.sizes.items())}
        return tuple(unique((self.sizes_at("opt"), self.sizes_at("min"), self.sizes_at("max"), between), key=repr))

    def arguments(self, sizes: Sizes, *, strided: bool = False) -> Arguments:
        """Create arguments for these sizes; with ``strided``, tensors of rank 2 or more are not contiguous."""

        def value(index: int, leaf: object) -> Leaf:
            if not isinstance(leaf, TensorSpec):
                return argument_value(leaf, sizes)
            x = evolve(leaf, seed=leaf.seed + 101 * index).create_tensor(sizes)
            return torch.stack([x, torch.zeros_like(x)], -1)[..., 0] if strided and x.dim() > 1 else x

        flat, spec = tree_flatten((self.args, self.kwargs))
        arguments: Arguments = tree_unflatten([value(i, leaf) for i, leaf in enumerate(flat)], spec)
        return arguments

    def dynamic_shapes(self, model: torch.nn.Module) -> Spec:
        """Return torch.export's ``dynamic_shapes``, with a ``Dim`` for each named size; None without named sizes."""
        dims = {name: Dim(name, min=r.min, max=r.max) for name, r in self.sizes.items()}

        def spec(leaf: object) -> object:
            if not isinstance(leaf, TensorSpec):
                return Dim.DYNAMIC if isinstance(leaf, Size) else None
            return {i: dim_size(d, dims) for i, d in enumerate(leaf.shape) if not isinstance(d, int)} or None

        args, kwargs = tree_map(spec, (self.args, self.kwargs))
        return inspect.signature(model.forward).bind(*args, **kwargs).arguments if dims else None

    def as_inputs(self) -> Arguments:
        """Return the arguments as ``pipeline.Input`` records, with the ranges of named sizes."""
        ends = self.sizes_at("min"), self.sizes_at("opt"), self.sizes_at("max")

        def as_input(leaf: object) -> object:
            if not isinstance(leaf, TensorSpec):
                return leaf
            low, opt, high = ([dim_size(d, sizes) for d in leaf.shape] for sizes in ends)
            return Input(min_shape=low, opt_shape=opt, max_shape=high, dtype=leaf.dtype)

        inputs: Arguments = tree_map(as_input, (self.args, self.kwargs))
        return inputs


def check_model(
    make: Callable[[], torch.nn.Module],
    args: Sequence[Argument] = (),
    kwargs: Mapping[str, Argument] | None = None,
    sizes: Mapping[str, Any] | None = None,
    *,
    build: bool = False,
    saved: bool = False,
    strided: bool = False,
    entry: Entry = "dims",
    partition: Any = None,
    executors: Sequence[Executor] | None = None,
    **settings: Any,
) -> Compiled:
    """Compile a model, and compare two successive calls with eager PyTorch at opt, min, max and an intermediate size.

    Two compilations must produce the same networks, which can be saved, and must not change any argument. No engine has
    fewer operators than ``min_block_size`` (unless it is the whole program); at most ``max_engines``. Each call must
    return eager's pytree, dtypes, shapes and values (the error against float64 may exceed eager's by the units of
    ``ulps.PROGRAM``), and mutate inputs and buffers as eager does. Results, inputs and later calls must not share
    memory unless they do in eager. If a result is the same tensor object as an input or another result in eager, it
    must be so in the compiled model (except for ``memory.ReturnedInputs``).

    Args:
        make: a function or class that creates the model; it is called with a fixed seed.
        args, kwargs: pytrees of ``TensorSpec`` and plain values.
        sizes: the values of the names in shapes, ``{"n": (min, opt, max)}``.
        build: build the engines too, take them from an engine cache, and run them if there is a GPU.
        saved: save the program, load it, and compare the loaded program with eager.
        strided: also test non-contiguous tensors; only for models that do not mutate through views.
        entry: compile the module with ``Dim`` s (``"dims"``), with ``pipeline.Input`` s, or an ``ExportedProgram``.
        partition: a stage that replaces ``partition``.
        executors: the executors to run on; None: the reference, and TensorRT if ``build`` and there is a GPU.
        settings: fields of ``CompilationSettings``.

    Raises:
        ModelError: a check failed.
        CaptureError: torch.export cannot capture the model.
        TypeError, ValueError: an argument is invalid.
    """
    model = _parse_model(make, args, kwargs, sizes, entry)
    compile = default(**settings)
    compile = compile if partition is None else compile.replace("partition", partition)
    compiled = _compile_twice(model, compile, entry, build)
    compiled = _save_and_load(compiled) if saved else compiled
    _check_segments(compiled)
    for executor in executors or default_executors(build):
        _compare_with_eager(model, compiled, executor, strided)
    return compiled


def _parse_model(
    make: Argument, args: Argument, kwargs: Argument, sizes: Mapping[str, object] | None, entry: Entry
) -> Model:
    """Create a `Model` from the arguments of ``check_model``; raise a TypeError or ValueError for invalid ones."""
    if isinstance(make, torch.nn.Module):
        raise TypeError(f"make is {kind_of(make)}: pass a function that creates the model, such as lambda: model")
    if entry not in get_args(Entry):
        raise ValueError(f"entry must be one of {', '.join(map(repr, get_args(Entry)))}, got {entry!r}")
    if isinstance(args, TensorSpec | str):
        raise TypeError(f"args is {kind_of(args)}: pass a tuple of inputs, such as args=(TensorSpec((2, 3)),)")
    args, kwargs = tuple(args), dict(kwargs or {})
    specs = tuple(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, TensorSpec | Size))
    return Model(make, args, kwargs, Call(None, specs, sizes=sizes or {}).sizes)


def _capture(model: Model, settings: CompilationSettings, entry: Entry) -> tuple[Program, list[Snapshot]]:
    """Capture the model as ``entry`` says (see `check_model`). Return the program, and snapshots, taken before, of what
    compilation must not change: the module's state, the inputs and, if there is one, the ``ExportedProgram``."""
    module = model.create()
    args, kwargs = model.as_inputs() if entry == "inputs" else model.arguments(model.sizes_at("opt"))
    shapes = None if entry == "inputs" else model.dynamic_shapes(module)
    before = [Snapshot.take((module.state_dict(), args, kwargs))]
    if entry != "exported":
        return capture(module, args, kwargs, shapes, settings), before
    try:
        with torch.no_grad():
            exported = torch.export.export(module, args, kwargs=kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise CaptureError(f"torch.export cannot capture {type(module).__name__}: {error}") from error
    return capture(exported, settings=settings), [*before, Snapshot.take(exported.state_dict, exported)]


def _compile_twice(model: Model, compile: Pipeline[Program, Compiled], entry: Entry, build: bool) -> Compiled:
    """Compile the model twice, captured as ``entry`` says (see `check_model`); check that networks are equal and the
    model and its inputs unchanged; return the compiled program. ``build``: with engines, which it reads from a cache.
    """
    try:
        program, before = _capture(model, compile.settings, entry)
        text = str(program)
        with tempfile.TemporaryDirectory() as folder:
            store = DiskStore(folder)
            compiled: Compiled = compile.replace("build", cached(store) if build else unbuilt)(program)
            again = compile.until("convert")(program)
            list(engine_requests(again))  # each can be cached
            compiled = _with_cached_engines(compiled, again, store) if build else compiled
    except (CaptureError, ModelError):
        raise
    except Exception as error:
        raise ModelError("compiles", f"compilation raised {type(error).__name__}: {error}") from error
    if changes := [change for snapshot in before if (change := snapshot.describe_changes())]:
        raise ModelError("changed", f"compiling changed the model or the inputs: {', '.join(changes)}")
    if str(program) != text:
        raise ModelError("changed", f"compiling changed the program\n{text}\n\nto\n{program}")
    if _as_text(compiled) != _as_text(again):
        raise ModelError("deterministic", f"two compilations differ:\n{_as_text(compiled)}\n\n{_as_text(again)}")
    return compiled


def _with_cached_engines(compiled: Compiled, converted: Converted, store: EngineStore) -> Compiled:
    """Return the program with its engines from the engine cache that they were saved in. ``converted``: the same
    program, converted again."""

    def fail_to_find(missing: Converted) -> Built:
        names = ", ".join(network.name for network in missing.networks)
        raise ModelError("cached", f"the engine cache does not have {names}, although it was built with this cache")

    built = cached(store, fail_to_find)(converted)
    if [engine.digest for engine in built.engines] != [engine.digest for engine in compiled.engines]:
        raise ModelError("cached", "the engine cache returns other engines than were built")
    return evolve(compiled, engines=built.engines)


def _save_and_load(compiled: Compiled) -> Compiled:
    """Return the program, saved and loaded; it must have the same segments and networks."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", ArtifactWarning)  # no GPU
        try:
            compiled.save(path := Path(folder, "saved.trtp"))
            loaded = load(path)
        except Exception as error:
            raise ModelError("saved", f"saving and loading raised {type(error).__name__}: {error}") from error
    if _as_text(loaded) != _as_text(compiled):
        raise ModelError("saved", f"the loaded program differs:\n{_as_text(loaded)}\n\n{_as_text(compiled)}")
    return loaded


def _as_text(record: Any) -> str:
    """Return a compiled program's segments and networks as text."""
    networks = "\n\n".join(map(str, record.networks))
    return f"{record.partitioned}\n\n{networks}"


def _check_segments(compiled: Compiled) -> None:
    """Check that segments are large enough and few enough, and that each reads only outputs of earlier segments; and
    that a layer reads each engine input, except empty tensors and numbers."""
    partitioned, program, settings = compiled.partitioned, compiled.program, compiled.settings
    operators = {n.name for n in program.graph.nodes if is_operator(n)}
    for segment in partitioned.engine_segments if partitioned.fallbacks else ():
        count = sum(name in operators for name in segment.nodes)
        if count < (least := settings.min_block_size):
            raise ModelError("blocks", f"{segment.name} has {count} operators, fewer than min_block_size={least}")
    count, most = len(partitioned.engine_segments), settings.max_engines
    if most is not None and count > most:
        raise ModelError("blocks", f"the program has {count} engines, more than max_engines={most}")
    if any(not fallback.reason for fallback in partitioned.fallbacks):
        raise ModelError("blocks", f"a node runs in PyTorch, but no reason is given why: {list(partitioned.fallbacks)}")
    known = {p.name for p in program.inputs} | set(program.buffers)
    for segment in partitioned.segments:
        if missing := {p.name for p in segment.inputs if p.kind == "tensor"} - known:
            raise ModelError("blocks", f"{segment.name} reads {sorted(missing)} before a segment computes it")
        known |= {p.name for p in segment.outputs}
    for segment, network in zip(compiled.partitioned.engine_segments, compiled.networks, strict=True):
        read = {name for layer in network.layers for name in layer.inputs}
        inputs = [port.name for port in segment.inputs if port.kind == "tensor" and 0 not in port.shape]
        if unread := [name for name in inputs if name not in read]:
            raise ModelError("blocks", f"no layer of {network.name} reads its input {', '.join(unread)}")


def _compare_with_eager(model: Model, compiled: Compiled, executor: Executor, strided: bool) -> None:
    """Run the compiled model, eager, and eager in float64 on the same inputs, each with its own buffers; raise a
    `ModelError` if they differ. ``strided``: also test non-contiguous inputs."""
    module, eager, exact = compiled.module(executor), model.create(), model.create().double()
    tries = [(sizes, False) for sizes in model.sizes_to_try]
    tries += [(sizes, True) for sizes in (model.sizes_at("opt"), *model.sizes_to_try[-1:]) if strided]
    for sizes, spread in tries:
        where = f" with {', '.join(f'{n} = {s}' for n, s in sizes.items())}{' strided' * spread} on {executor}"
        ours, theirs, doubles = (model.arguments(sizes, strided=spread) for _ in range(3))
        doubles = tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, doubles)
        run = _ComparedCalls(module, eager, exact, ours, theirs, doubles, where, executor)
        if sizes == model.sizes_at("opt") or run.accepts_sizes():
            run.compare_two_calls()


@frozen
class _ComparedCalls:
    """A comparison of the compiled ``module`` with ``eager`` and ``exact`` (in float64) on their own copies of the same
    arguments: ``ours``, ``theirs`` and ``doubles``."""

    module: CompiledModule
    eager: torch.nn.Module
    exact: torch.nn.Module
    ours: Arguments
    theirs: Arguments
    doubles: Arguments
    where: str
    executor: Executor

    def accepts_sizes(self) -> bool:
        """Return whether the program accepts the inputs' sizes: torch.export may exclude some, with a warning."""
        try:
            bind_symbols(self.module.program, flatten_inputs(self.module.program, *self.ours))
        except ShapeError:
            return False
        return True

    def compare_two_calls(self) -> None:
        """Compare two successive calls with eager's; raise a `ModelError` if the second changes the first's results."""
        first = self.compare_call(f"{self.where}, first call")
        before = [Snapshot.take(results) for results in first]
        second = self.compare_call(f"{self.where}, second call")
        if fault := memory.describe_memory_shared_by_calls(*zip(first, second, strict=True)):
            raise ModelError("aliasing", f"memory is shared otherwise than in eager: {fault}{self.where}")
        if (fault := before[0].describe_changes()) and not before[1].describe_changes():
            raise ModelError("aliasing", f"the second call changed the first call's result{fault}{self.where}")

    def compare_call(self, where: str) -> tuple[Leaf, Leaf]:
        """Compare one call with eager's; return both results. ``where``: the sizes and executor, for error messages."""
        with torch.no_grad():
            with ReturnedInputs() as returned_inputs:
                eager = self.eager(*self.theirs[0], **self.theirs[1])
            try:
                exact = self.exact(*self.doubles[0], **self.doubles[1])
            except (RuntimeError, ValueError):  # an operator does not accept float64 together with other dtypes
                exact = None
        try:
            ours = self.module(*self.ours[0], **self.ours[1])
        except Exception as error:
            raise ModelError("runs", f"the compiled module raised {type(error).__name__}{where}: {error}") from error
        self.compare_outputs("values", "result", eager, exact, ours, where)
        self.compare_outputs("mutation", "input", self.theirs, self.doubles, self.ours, where)
        mutated = {name: find_buffer(self.module, name).cpu() for name in self.module.program.buffers.values()}
        theirs, doubles = ({name: m.get_buffer(name) for name in mutated} for m in (self.eager, self.exact))
        self.compare_outputs("mutation", "buffer", theirs, doubles, mutated, where)
        if fault := describe_shared_memory(ours, self.ours, eager, self.theirs, returned_inputs.tensors):
            raise ModelError("aliasing", f"memory is shared otherwise than in eager: {fault}{where}")
        return ours, eager

    def compare_outputs(self, kind: Kind, label: str, eager: object, exact: object, ours: object, where: str) -> None:
        """Raise a `ModelError` of this kind if ``ours`` is wrong: errors against ``exact`` may slightly exceed eager's.
        ``label``: result, input or buffer. ``where``: the sizes and executor, for the message."""
        if fault := describe_outputs_difference(label, eager, exact, ours, self.module.program, self.executor):
            parts = f"the program is\n{self.module.program}\n\nand its engines are\n{_as_text(self.module.compiled)}"
            raise ModelError(kind, f"the compiled model differs from eager: {fault}{where}; {parts}")
