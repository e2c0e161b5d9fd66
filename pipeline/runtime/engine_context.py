"""Share execution contexts between segments of a program that run the same engine, one after the other.

Each context of TensorRT-RTX costs GPU memory and time, even for a small engine. Decoder layers that share an engine
differ only in addresses, so one context can run all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pipeline.errors import ExecutionError
from pipeline.runtime.engine_buffers import OutputBuffer
from pipeline.runtime.engine_load import LOG, LoadedEngine, Messages, collect_errors
from pipeline.runtime.ranks import nccl_communicator
from pipeline.trt import trt

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The type of a mapping from input to shape, as tuples of (name, shape)."""


class Context:
    """A TensorRT execution context with its current state: its session, shapes, addresses and output allocators.

    ``name``: the name of the session's network, for errors. ``owner``: a token of the session whose state this is; any
    other session sets its own state before it runs. The session itself is not referenced: a reference cycle would hold
    GPU memory until the garbage collector runs.

    Args:
        loaded: the engine.
        stream: the stream on which the profile is selected.
        profile: the number of the engine's profile for all runs.
        graph: whether TensorRT-RTX launches runs as a CUDA graph.
    """

    def __init__(self, loaded: LoadedEngine, stream: torch.cuda.Stream, profile: int, *, graph: bool = False) -> None:
        self.owner: object = None
        self.name, self._shapes = loaded.network.name, Shapes()
        self._addresses: dict[str, int] = {}
        self._buffers: dict[str, OutputBuffer] = {}
        with collect_errors() as messages:
            self.handle, self._config = loaded.new_context(messages, graph=graph)
            if loaded.group:
                taken = self.handle.set_communicator(nccl_communicator(loaded.group))
                self.require_success(taken, f"the communicator of group {loaded.group}", messages)
            taken = self.handle.set_optimization_profile_async(profile, stream.cuda_stream)
            self.require_success(taken, f"profile {profile}", messages)

    def require_success(self, succeeded: bool, action: str, messages: Messages) -> None:
        """Raise an ``ExecutionError`` unless ``succeeded``: "TensorRT refused ``action``", with ``messages()``."""
        if not succeeded:
            raise ExecutionError(f"{self.name}: TensorRT refused {action} ({messages()})")

    def set_shapes(self, shapes: Shapes, ranges: Mapping[str, str], messages: Messages, *, force: bool = False) -> None:
        """Set the inputs' shapes and let TensorRT infer all other shapes; skip this if the context has these shapes,
        unless ``force``. ``ranges``: for errors, the shapes that each input was built for."""
        if shapes == self._shapes and shapes and not force:
            return
        self._shapes = Shapes()
        for name, shape in shapes:
            taken = self.handle.set_input_shape(name, shape)
            self.require_success(taken, f"the shape {list(shape)} of input {name}{ranges.get(name, '')}", messages)
        try:
            missing = self.handle.infer_shapes()
        except RuntimeError as error:
            raise ExecutionError(f"{self.name}: TensorRT cannot infer shapes: {error} ({messages()})") from error
        self.require_success(not missing, f"to infer shapes without {', '.join(missing)}", messages)
        self._shapes = shapes

    def set_address(self, name: str, address: int) -> None:
        """Set the address of an input or output, unless the context has this address."""
        if self._addresses.get(name) != address:
            self._addresses.pop(name, None)
            mark = LOG.position()
            if not self.handle.set_tensor_address(name, address):
                self.require_success(False, f"the address of {name}", lambda: LOG.error_text_since(mark))
            self._addresses[name] = address

    def set_output_allocator(self, output_name: str, buffer: OutputBuffer) -> None:
        """Set the allocator of an output, unless the context has this allocator."""
        if self._buffers.get(output_name) is not buffer:
            self._buffers.pop(output_name, None)
            mark = LOG.position()
            taken = self.handle.set_output_allocator(output_name, buffer)
            self.require_success(taken, f"an output allocator for {output_name}", lambda: LOG.error_text_since(mark))
            self._buffers[output_name] = buffer

    def set_memory(self, memory: torch.Tensor) -> None:
        """Set the memory that the context uses for activations."""
        if hasattr(self.handle, "set_device_memory"):
            self.handle.set_device_memory(memory.data_ptr(), memory.numel())
        else:
            self.handle.device_memory = memory.data_ptr()


class Contexts:
    """The execution contexts that sessions share: one for each engine and profile."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], tuple[trt.ICudaEngine, Context]] = {}

    def context_for(self, loaded: LoadedEngine, stream: torch.cuda.Stream, profile: int) -> Context:
        """Return the shared context of an engine and profile; create it at the first call."""
        key = (id(loaded.cuda_engine), profile)
        if key not in self._made:
            self._made[key] = loaded.cuda_engine, Context(loaded, stream, profile)
        return self._made[key][1]
