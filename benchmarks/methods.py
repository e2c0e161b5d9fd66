"""The ways to run a model on a GPU that are compared: each takes a module and inputs and gives a call to be timed."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_leaves

import pipeline
from pipeline.runtime.engine_load import load
from pipeline.trt import CAPABILITIES, to_torch, trt

Tensors: TypeAlias = dict[str, torch.Tensor]
Call: TypeAlias = Callable[[], Any]
Method: TypeAlias = Callable[[torch.nn.Module, Tensors, "Clock"], Call]


class Clock:
    """Seconds of what is told apart from compiling: torch.export, which several methods have in common.

    ``made`` is what methods of one model share, by name; ``shared`` tells whether this one found it made.
    """

    def __init__(self, made: dict[str, Any] | None = None) -> None:
        self.export, self.shared = 0.0, False
        self.made = {} if made is None else made

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What was made under a name, or is now."""
        self.shared = name in self.made
        if not self.shared:
            self.made[name] = make()
        return self.made[name]

    @contextlib.contextmanager
    def exporting(self) -> Iterator[None]:
        """Inside it is torch.export's time."""
        start = time.perf_counter()
        yield
        self.export += time.perf_counter() - start


def eager(model: torch.nn.Module, inputs: Tensors, clock: Clock) -> Call:
    """PyTorch as it is."""
    return lambda: model(**inputs)


def eager_graph(model: torch.nn.Module, inputs: Tensors, clock: Clock) -> Call:
    """PyTorch captured in a CUDA graph; a call copies the inputs in and replays."""
    held = {name: tensor.clone() for name, tensor in inputs.items()}
    for _ in range(3):
        model(**held)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = model(**held)

    def call() -> Any:
        for name, tensor in inputs.items():
            held[name].copy_(tensor)
        graph.replay()
        return output

    return call


def inductor(model: torch.nn.Module, inputs: Tensors, clock: Clock, mode: str = "default") -> Call:
    """torch.compile."""
    compiled = torch.compile(model, mode=mode, dynamic=False)
    return lambda: compiled(**inputs)


def inductor_graph(model: torch.nn.Module, inputs: Tensors, clock: Clock) -> Call:
    """torch.compile with CUDA graphs."""
    return inductor(model, inputs, clock, "reduce-overhead")


class Positional(torch.nn.Module):
    """A module called by position."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *args: torch.Tensor) -> Any:
        """What the model gives for these inputs by name."""
        return self.model(**dict(zip(self.names, args, strict=True)))


def torch_tensorrt(model: torch.nn.Module, inputs: Tensors, clock: Clock) -> Call:
    """Torch-TensorRT's dynamo front end, with the types of the model."""
    peer, args = _peer(), tuple(inputs.values())

    def compiled() -> Any:
        with clock.exporting():
            exported = torch.export.export(Positional(model, list(inputs)), args, strict=False)
        return peer.dynamo.compile(exported, inputs=list(args), use_explicit_typing=True, min_block_size=1)

    module = clock.once("Torch-TensorRT", compiled)
    return lambda: module(*args)


def torch_tensorrt_graph(model: torch.nn.Module, inputs: Tensors, clock: Clock) -> Call:
    """Torch-TensorRT with its CUDA graphs, in their `mode`."""
    return torch_tensorrt(model, inputs, clock)


@contextlib.contextmanager
def mode(method: str) -> Iterator[None]:
    """What a method's calls happen in: Torch-TensorRT's graphs are switched on and off for the whole process."""
    if method != "Torch-TensorRT + graph":
        yield
        return
    _peer().runtime.set_cudagraphs_mode(True)
    try:
        yield
    finally:
        _peer().runtime.set_cudagraphs_mode(False)


def _peer() -> Any:
    for name in ("torch_tensorrt_rtx", "torch_tensorrt"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ModuleNotFoundError("Torch-TensorRT is not installed")


def ours(model: torch.nn.Module, inputs: Tensors, clock: Clock, graph: bool = False) -> Call:
    """This package."""
    module = _compiled(model, inputs, clock).module(executor="tensorrt", cuda_graphs=graph, runtime_cache=False)
    return lambda: module(**inputs)


def ours_graph(model: torch.nn.Module, inputs: Tensors, clock: Clock) -> Call:
    """This package with CUDA graphs: recorded at the second call."""
    call = ours(model, inputs, clock, graph=True)
    call()
    return call


def _compiled(model: torch.nn.Module, inputs: Tensors, clock: Clock) -> pipeline.Compiled:
    def compiled() -> pipeline.Compiled:
        with clock.exporting():
            exported = torch.export.export(model, (), inputs, strict=False)
        result: pipeline.Compiled = pipeline.default(require_full_compilation=True)(exported)
        return result

    result: pipeline.Compiled = clock.once("pipeline", compiled)
    return result


def raw(model: torch.nn.Module, inputs: Tensors, clock: Clock, graph: bool = False) -> Call:
    """The engine of this package driven by hand: every address is set once, a call only enqueues."""
    return driven(_compiled(model, inputs, clock), inputs, graph)


def driven(compiled: pipeline.Compiled, inputs: Tensors, graph: bool) -> Call:
    """The one engine of a program with these inputs bound, on the current stream."""
    [engine] = compiled.engines
    loaded = load(engine)
    context = _context(loaded, graph)
    held = dict(zip([p.name for p in compiled.program.inputs], tree_leaves(inputs), strict=True))
    for name, tensor in held.items():
        _done(context.set_input_shape(name, tuple(tensor.shape)), f"the shape of {name}")
    given = [tensor.name for tensor in compiled.networks[0].outputs]
    for name in given:
        shape, dtype = tuple(context.get_tensor_shape(name)), to_torch(loaded.get_tensor_dtype(name))
        held[name] = torch.empty(shape, dtype=dtype, device="cuda")
    for name, tensor in held.items():
        _done(context.set_tensor_address(name, tensor.data_ptr()), f"the address of {name}")
    values = {port.name: held[name] for port, name in zip(compiled.partitioned.segments[0].outputs, given, strict=True)}
    results = [values[output.value] for output in compiled.program.outputs]
    stream = torch.cuda.current_stream().cuda_stream

    def call() -> Any:
        _done(context.execute_async_v3(stream), "to run")
        return results

    return call


def raw_graph(model: torch.nn.Module, inputs: Tensors, clock: Clock) -> Call:
    """The same with the CUDA graph that TensorRT-RTX captures."""
    return raw(model, inputs, clock, graph=True)


def _context(loaded: Any, graph: bool) -> Any:
    if not CAPABILITIES.runtime_config:
        _done(not graph, "a runtime configuration: it is TensorRT-RTX's")
        return loaded.create_execution_context()
    config = loaded.create_runtime_config()
    if graph:
        config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    return loaded.create_execution_context(runtime_config=config)


def _done(done: Any, what: str) -> None:
    if not done:
        raise RuntimeError(f"TensorRT refused {what}")


METHODS: dict[str, Method] = {
    "eager": eager,
    "eager + graph": eager_graph,
    "torch.compile": inductor,
    "torch.compile reduce-overhead": inductor_graph,
    "Torch-TensorRT": torch_tensorrt,
    "Torch-TensorRT + graph": torch_tensorrt_graph,
    "raw engine": raw,
    "raw engine + graph": raw_graph,
    "pipeline": ours,
    "pipeline + graph": ours_graph,
}
