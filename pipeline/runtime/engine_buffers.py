"""The inputs and outputs of an engine, and memory for outputs, including those whose size a run determines."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from attrs import frozen

from pipeline.trt import CAPABILITIES, enum_name, to_torch, trt

ALIGNMENT = 256
"""TensorRT requires device addresses to be multiples of this number of bytes."""

Allocator: TypeAlias = Callable[[], torch.Tensor]
_guards: Any = torch._C._dynamo.guards
_ALLOCATORS = {"cuda": _guards._empty_strided_cuda, "cpu": _guards._empty_strided_cpu}


@frozen
class Binding:
    """An input or output of an engine.

    ``shape`` has -1 for dynamic dims. ``on_host``: TensorRT reads or writes its values in host memory. ``alias``: the
    input that the engine updates in place to produce this output (a KV cache).
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    on_host: bool
    alias: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {describe_tensor(self.dtype, self.shape)}"


def tensor_at_address(address: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of ``count`` elements at an address that the device can access; the memory stays the owner's."""
    of_bytes: Any = torch._C._construct_storage_from_data_pointer
    memory = torch.empty(0, dtype=dtype, device=device)
    return memory.set_(of_bytes(address, device, count * dtype.itemsize))


def describe_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Return a dtype and shape as text: ``float32[2, 3]``."""
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def read_bindings(cuda_engine: trt.ICudaEngine) -> dict[str, Binding]:
    """Return the engine's inputs and outputs by name."""
    found = {}
    for i in range(cuda_engine.num_io_tensors):
        name = cuda_engine.get_tensor_name(i)
        dtype, shape = to_torch(cuda_engine.get_tensor_dtype(name)), tuple(cuda_engine.get_tensor_shape(name))
        alias = cuda_engine.get_aliased_input_tensor(name) if CAPABILITIES.kv_cache_update else None
        on_host = enum_name(cuda_engine.get_tensor_location(name)) == "HOST"
        found[name] = Binding(name, dtype, shape, on_host, alias or None)
    return found


def to_engine_memory(value: object, binding: Binding, device: torch.device) -> torch.Tensor:
    """Convert a value to what TensorRT reads: a contiguous, aligned tensor on the GPU, or a new copy in host memory."""
    tensor = torch.as_tensor(value).detach()
    if tensor.dtype == torch.float64 and binding.dtype == torch.float32:
        tensor = tensor.float()
    if binding.on_host:
        return tensor.to("cpu", copy=True).contiguous()
    tensor = tensor.to(device).resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def has_plain_layout(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous, without a conjugate or negative bit."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def tensor_allocator(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, strides: tuple[int, ...] | None = None
) -> Allocator:
    """Return a function that allocates tensors of this shape and dtype on the current GPU or the CPU; they are
    contiguous if ``strides`` is None. It uses the allocator of torch's generated code, the fastest one."""
    strides = torch.empty(shape, device="meta").stride() if strides is None else strides
    return partial(_ALLOCATORS[device.type], shape, strides, dtype)


class ActivationMemory:
    """Activation memory shared by engines that run one after another; its size is the largest engine's need."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.nbytes = device, 0
        self._memory: torch.Tensor | None = None

    def reserve(self, nbytes: int) -> None:
        """Make room for ``nbytes`` bytes; call this before any engine runs."""
        self.nbytes = max(self.nbytes, nbytes)

    @property
    def memory(self) -> torch.Tensor:
        """The memory as a tensor, allocated at the first access."""
        if self._memory is None or self._memory.numel() < self.nbytes:
            self._memory = tensor_allocator((max(self.nbytes, ALIGNMENT),), torch.uint8, self.device)()
        return self._memory


class ReusableMemory:
    """A session's memory for one input or output; its address is the same for all shapes that fit into it."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._memory: torch.Tensor | None = None

    def view(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor of this shape in the memory, or in new memory if it is too small; earlier tensors stay
        valid."""
        size = math.prod(shape) * self.dtype.itemsize
        if self._memory is None or self._memory.numel() < size:
            self._memory = torch.empty(max(size, ALIGNMENT), dtype=torch.uint8, device=self.device)
        return self._memory[:size].view(self.dtype).view(shape)


class OutputBuffer(trt.IOutputAllocator):  # type: ignore[misc,unused-ignore]
    """Memory for an output with a data-dependent shape: TensorRT requests it, and reports the shape, during the run."""

    def __init__(self, binding: Binding, device: torch.device) -> None:
        trt.IOutputAllocator.__init__(self)
        self.binding, self.device = binding, device
        self.begin_run(None)

    def begin_run(self, stream: torch.cuda.Stream | None) -> None:
        """Prepare the buffer for a run on a stream: forget the previous run."""
        self.stream = stream
        self.error: Exception | None = None
        self._memory: torch.Tensor | None = None
        self._shape: tuple[int, ...] | None = None

    def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
        """Return the address of at least ``size`` bytes; 0 if allocation fails, since callbacks must not raise."""
        try:
            with torch.cuda.stream(self.stream):
                self._memory = torch.empty(max(int(size), ALIGNMENT), dtype=torch.uint8, device=self.device)
            return self._memory.data_ptr()
        except Exception as error:
            self.error = error
            return 0

    def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
        """Allocate as `reallocate_output` does; ``stream`` is ignored, since `begin_run` has set the run's stream."""
        return self.reallocate_output(tensor_name, memory, size, alignment)

    def notify_shape(self, tensor_name: str, shape: Any) -> None:
        self._shape = tuple(shape)

    def take_output(self) -> torch.Tensor | None:
        """Return the output of the finished run, and forget it; None if TensorRT requested too little memory."""
        memory, shape = self._memory, self._shape
        self.begin_run(None)
        if shape is None:
            return None
        size = math.prod(shape) * self.binding.dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=self.binding.dtype, device=self.device)
        return None if memory is None or memory.numel() < size else memory[:size].view(self.binding.dtype).view(shape)
