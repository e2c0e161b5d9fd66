"""Runs a serialized engine on a GPU, on the caller's stream."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.errors import ExecutionError
from pipeline.network import Network
from pipeline.program import Engine
from pipeline.runtime.engine_buffers import Binding, OutputBuffer, bindings, described, placed
from pipeline.runtime.engine_load import Said, listening, load
from pipeline.runtime.engine_refit import refit
from pipeline.runtime.engine_stream import Lane
from pipeline.trt import CAPABILITIES

__all__ = ["EngineRunner", "Session", "refit"]


class EngineRunner:
    """A loaded engine: takes and gives tensors in the order of the network's inputs and outputs.

    Inputs may lie on any device; a symbolic int is a Python int. Outputs are new tensors on the GPU that was current
    when the engine was loaded, in the order of the current stream. Threads take turns.

    Raises:
        ExecutionError: there is no GPU, the engine does not load or run; with TensorRT's words.
    """

    def __init__(self, engine: Engine, network: Network) -> None:
        loaded = load(engine)
        self._lane = Lane(torch.device("cuda", torch.cuda.current_device()))
        self._lock = threading.Lock()
        with self._lane.guard():
            self._session = Session(loaded, network, self._lane)

    def __call__(self, inputs: Sequence[torch.Tensor | int]) -> list[torch.Tensor]:
        """The network's outputs for these inputs."""
        with self._lock, self._lane.guard():
            return self._session(inputs)


class Session:
    """An engine with an execution context: each call binds inputs, infers shapes, binds outputs and enqueues."""

    def __init__(self, cuda_engine: Any, network: Network, lane: Lane) -> None:
        self.engine, self.network, self.lane = cuda_engine, network, lane
        self.known = bindings(cuda_engine)
        self.inputs = [self._bound(tensor.name) for tensor in network.inputs]
        self.outputs = [self._bound(tensor.name) for tensor in network.outputs]
        self.empty = {b.name: torch.empty(256, dtype=torch.uint8, device=self._home(b)) for b in self.known.values()}
        self.written = {b.alias for b in self.outputs if b.alias}
        self.buffers: dict[str, OutputBuffer] = {}
        with listening() as said:
            self.context = self._context(said)
            with lane.turn() as stream:
                self._require(self.context.set_optimization_profile_async(0, stream.cuda_stream), "profile 0", said)

    def __call__(self, inputs: Sequence[torch.Tensor | int]) -> list[torch.Tensor]:
        if len(inputs) != len(self.inputs):
            raise ExecutionError(f"{self.network.name} takes {len(self.inputs)} inputs, was given {len(inputs)}")
        with listening() as said:
            given = {b.name: self._give(b, value, said) for b, value in zip(self.inputs, inputs, strict=True)}
            self._infer(said)
            results = [self._receive(b, given, said) for b in self.outputs]
            self._enqueue([given[b.name] for b in self.inputs if b.on_host], said)
            return [self._finished(b, result) for b, result in zip(self.outputs, results, strict=True)]

    def _bound(self, name: str) -> Binding:
        if name not in self.known:
            raise ExecutionError(f"{self.network.name} has no {name}, only {', '.join(map(str, self.known.values()))}")
        return self.known[name]

    def _home(self, binding: Binding) -> torch.device:
        return torch.device("cpu") if binding.on_host else self.lane.device

    def _context(self, said: Said) -> Any:
        if CAPABILITIES.runtime_config:
            context = self.engine.create_execution_context(runtime_config=self.engine.create_runtime_config())
        else:
            context = self.engine.create_execution_context()
        self._require(context is not None, "an execution context", said)
        return context

    def _require(self, done: bool, what: str, said: Said) -> None:
        if not done:
            raise ExecutionError(f"{self.network.name}: TensorRT refused {what} ({said()})")

    def _give(self, binding: Binding, value: torch.Tensor | int, said: Said) -> torch.Tensor:
        """Bind an input; its memory is alive as long as the result. What the engine writes into is a copy."""
        tensor = placed(value, binding, self.lane.device)
        tensor = tensor.clone() if binding.name in self.written else tensor
        shape = tuple(tensor.shape)
        if tensor.dtype != binding.dtype or (binding.on_host and shape != binding.shape):
            what = described(tensor.dtype, shape)
            raise ExecutionError(f"{self.network.name}: input {binding.name} is {what}, the engine takes {binding}")
        if not binding.on_host:
            taken = self.context.set_input_shape(binding.name, shape)
            self._require(taken, f"the shape {list(shape)} of input {binding.name}{self._range(binding)}", said)
        self._address(binding, tensor, said)
        return tensor

    def _range(self, binding: Binding) -> str:
        ranges = self.network.profile.ranges if self.network.profile else ()
        spans = (f", built for {list(low)} to {list(high)}" for name, low, _, high in ranges if name == binding.name)
        return next(spans, f", built for {list(binding.shape)}")

    def _address(self, binding: Binding, tensor: torch.Tensor, said: Said) -> None:
        # A tensor without elements has no memory in torch; TensorRT wants an address, another for each tensor.
        memory = tensor if tensor.numel() else self.empty[binding.name]
        taken = self.context.set_tensor_address(binding.name, memory.data_ptr())
        self._require(taken, f"the address of {binding.name}", said)

    def _infer(self, said: Said) -> None:
        try:
            missing = self.context.infer_shapes()
        except RuntimeError as error:
            raise ExecutionError(f"{self.network.name}: shapes cannot be inferred: {error} ({said()})") from error
        self._require(not missing, f"to infer shapes without more about {', '.join(missing)}", said)

    def _receive(self, binding: Binding, given: Mapping[str, torch.Tensor], said: Said) -> torch.Tensor | OutputBuffer:
        """Bind an output: new memory where the shape is known by now, else a buffer that TensorRT asks for memory."""
        shape = tuple(self.context.get_tensor_shape(binding.name))
        if -1 in shape or binding.name in self.buffers:
            return self._buffer(binding, said)
        if binding.alias:
            tensor = given[binding.alias]
        else:
            tensor = torch.empty(shape, dtype=binding.dtype, device=self._home(binding))
        self._address(binding, tensor, said)
        return tensor

    def _buffer(self, binding: Binding, said: Said) -> OutputBuffer:
        if binding.name not in self.buffers:
            buffer = OutputBuffer(binding, self.lane.device)
            taken = self.context.set_output_allocator(binding.name, buffer)
            self._require(taken, f"an output allocator for {binding.name}", said)
            self.buffers[binding.name] = buffer
        return self.buffers[binding.name]

    def _enqueue(self, host: Sequence[torch.Tensor], said: Said) -> None:
        with self.lane.turn(host) as stream:
            for buffer in self.buffers.values():
                buffer.begin(stream)
            done = self.context.execute_async_v3(stream.cuda_stream)
            if done and any(binding.on_host for binding in self.outputs):
                stream.synchronize()
        errors = [buffer.error for buffer in self.buffers.values() if buffer.error is not None]
        if errors:
            raise ExecutionError(f"{self.network.name}: no memory for an output: {errors[0]}") from errors[0]
        self._require(done, "to run", said)

    def _finished(self, binding: Binding, result: torch.Tensor | OutputBuffer) -> torch.Tensor:
        tensor = result.take() if isinstance(result, OutputBuffer) else result
        if tensor is None:
            raise ExecutionError(f"{self.network.name}: TensorRT asked for no memory for output {binding.name}")
        if isinstance(result, OutputBuffer) and tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self.lane.device))
        return tensor.to(self.lane.device)
