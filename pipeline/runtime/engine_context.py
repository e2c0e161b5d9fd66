"""Execution contexts of a worker, which sessions of one engine use in turns.

A context of TensorRT-RTX costs memory on the GPU and time to make, whatever the engine. Layers of a decoder that are
one engine, built once, are told apart by addresses alone: one context runs them all.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pipeline.errors import ExecutionError
from pipeline.runtime.engine_buffers import OutputBuffer
from pipeline.runtime.engine_load import LOG, LoadedEngine, Said, listening
from pipeline.trt import trt

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The shape of each input, by name."""


class Context:
    """An execution context with what was set last: whose turn it is, shapes, addresses and output allocators.

    ``name`` is that of the network whose turn it is, for errors. ``turn`` is an object of the session whose turn it is,
    and not the session: a circle would keep memory on the GPU until the garbage collector comes.

    Args:
        loaded: the engine.
        stream: the stream on which the profile is selected.
        profile: the number of the engine's profile for all runs.
        graph: let TensorRT-RTX launch runs as a CUDA graph.
    """

    def __init__(self, loaded: LoadedEngine, stream: torch.cuda.Stream, profile: int, *, graph: bool = False) -> None:
        self.turn: object = None
        self.name, self._shapes = loaded.network.name, Shapes()
        self._addresses: dict[str, int] = {}
        self._buffers: dict[str, OutputBuffer] = {}
        with listening() as said:
            self.made, self._config = loaded.context(said, graph=graph)
            taken = self.made.set_optimization_profile_async(profile, stream.cuda_stream)
            self.require(taken, f"profile {profile}", said)

    def require(self, done: bool, what: str, said: Said) -> None:
        """Raise ``ExecutionError`` with TensorRT's words if it did not do something."""
        if not done:
            raise ExecutionError(f"{self.name}: TensorRT refused {what} ({said()})")

    def shape(self, shapes: Shapes, ranges: Mapping[str, str], said: Said, *, anew: bool = False) -> None:
        """Set the inputs' shapes and infer the others, unless these are set; ``anew``: even then. ``ranges`` says in
        words what each input was built for."""
        if shapes == self._shapes and shapes and not anew:
            return
        self._shapes = Shapes()
        for name, shape in shapes:
            taken = self.made.set_input_shape(name, shape)
            self.require(taken, f"the shape {list(shape)} of input {name}{ranges.get(name, '')}", said)
        try:
            missing = self.made.infer_shapes()
        except RuntimeError as error:
            raise ExecutionError(f"{self.name}: shapes cannot be inferred: {error} ({said()})") from error
        self.require(not missing, f"to infer shapes without more about {', '.join(missing)}", said)
        self._shapes = shapes

    def address(self, name: str, address: int) -> None:
        """Set the address of an input or output, unless it is set."""
        if self._addresses.get(name) != address:
            self._addresses.pop(name, None)
            mark = LOG.mark()
            if not self.made.set_tensor_address(name, address):
                self.require(False, f"the address of {name}", lambda: LOG.said_since(mark))
            self._addresses[name] = address

    def ask(self, name: str, buffer: OutputBuffer) -> None:
        """Have an output's memory asked for, unless it is already."""
        if self._buffers.get(name) is not buffer:
            self._buffers.pop(name, None)
            mark = LOG.mark()
            taken = self.made.set_output_allocator(name, buffer)
            self.require(taken, f"an output allocator for {name}", lambda: LOG.said_since(mark))
            self._buffers[name] = buffer

    def lend(self, memory: torch.Tensor) -> None:
        """Lend memory for activations."""
        if hasattr(self.made, "set_device_memory"):
            self.made.set_device_memory(memory.data_ptr(), memory.numel())
        else:
            self.made.device_memory = memory.data_ptr()


class Contexts:
    """Contexts that sessions share, by engine and profile."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], tuple[trt.ICudaEngine, Context]] = {}

    def of(self, loaded: LoadedEngine, stream: torch.cuda.Stream, profile: int) -> Context:
        """The context of an engine and a profile."""
        key = (id(loaded.cuda_engine), profile)
        if key not in self._made:
            self._made[key] = loaded.cuda_engine, Context(loaded, stream, profile)
        return self._made[key][1]
