"""An engine, its context and its stream as TensorRT's bindings have them, that compute on the CPU and can refuse."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipeline.network.description import Network, Profile, Tensor
from pipeline.runtime.engine_load import LOG
from pipeline.trt import to_trt, torch_dtype, trt

HANDLE = 7
CPU = torch.device("cpu")


class FakeStream:
    """A stream that only has a handle."""

    def __init__(self, calls: list[Any]) -> None:
        self.cuda_stream, self.calls = HANDLE, calls

    def synchronize(self) -> None:
        self.calls.append("synchronize")


class FakeLane:
    """A GPU whose stream runs everything at once; ``away``: another GPU is current."""

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = FakeStream([])
        self.away = False

    def is_other_gpu_current(self) -> bool:
        return self.away

    def current_stream_handle(self) -> int:
        return HANDLE

    def run(self, body: Callable[..., Any], *args: Any) -> Any:
        return body(self.stream, *args)


class FakeConfig:
    """A runtime configuration that keeps what it is told."""

    cuda_graph_strategy: Any = None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self.strategy = strategy


def say(text: str) -> None:
    """An error in TensorRT's log."""
    LOG.log(trt.ILogger.Severity.ERROR, text)


class FakeContext:
    """Computes with `function` on memory at the addresses it was given; what is named in `refuse` returns False.

    As TensorRT-RTX's it does not hold its configuration, and reads it when it is told a profile.
    """

    def __init__(self, engine: FakeEngine, config: FakeConfig) -> None:
        self._config = weakref.ref(config)
        self.engine, self.calls, self.refuse = engine, engine.calls, engine.refuse
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}

    @property
    def config(self) -> FakeConfig:
        made = self._config()
        assert made is not None, "the context's configuration is gone: TensorRT-RTX would end the process"
        return made

    def answer(self, call: str, *details: Any) -> bool:
        self.calls.append((call, *details))
        if call in self.refuse:
            say(f"fake {call} error")
        return call not in self.refuse

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert self.config.strategy == trt.ExecutionContextAllocationStrategy.USER_MANAGED
        return self.answer("set_optimization_profile_async", index, stream)

    def set_communicator(self, communicator: object) -> bool:
        return self.answer("set_communicator", communicator)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return self.answer("set_input_shape", name, shape)

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address, f"{name} has a null address"
        self.addresses[name] = address
        return self.answer("set_tensor_address", name)

    def set_device_memory(self, address: int, size: int) -> None:
        assert address and size >= self.engine.device_memory_size_v2
        self.calls.append(("set_device_memory",))

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return self.answer("set_output_allocator", name)

    def infer_shapes(self) -> list[str]:
        if "raise" in self.refuse:
            raise RuntimeError("fake inference failed")
        return [] if self.answer("infer_shapes") else ["x"]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Outputs whose shape the run tells are open until then."""
        result = self.results()[name]
        return tuple(-1 if name in self.engine.open else size for size in result.shape)

    def results(self) -> dict[str, torch.Tensor]:
        inputs = {t.name: self.read(t) for t in self.engine.network.inputs}
        outputs = self.engine.function(*inputs.values())
        return {t.name: value for t, value in zip(self.engine.network.outputs, outputs, strict=True)}

    def read(self, tensor: Tensor) -> torch.Tensor:
        shape, dtype = self.shapes.get(tensor.name, tensor.shape), torch_dtype(tensor.dtype)
        value = torch.zeros(shape, dtype=dtype)
        if tensor.name not in self.addresses:
            return value  # shapes may be asked for before the inputs have addresses
        ctypes.memmove(value.data_ptr() or None, self.addresses[tensor.name], value.nbytes)
        return value

    def execute_async_v3(self, stream: int) -> bool:
        if not self.answer("execute_async_v3", stream):
            return False
        assert all(t.name in self.addresses for t in self.engine.network.inputs)
        apart = [a for n, a in self.addresses.items() if n not in self.engine.alias and n not in self.allocators]
        assert len(set(apart)) == len(apart), "two tensors have one address"
        for name, value in self.results().items():
            allocator = self.allocators.get(name)
            address = self.addresses.get(name) if allocator is None else self.allocate(allocator, name, value)
            if not address:
                return False
            ctypes.memmove(address, value.contiguous().data_ptr() or None, value.nbytes)
        return True

    def allocate(self, allocator: Any, name: str, value: torch.Tensor) -> int:
        address: int = allocator.reallocate_output_async(name, 0, value.nbytes, 256, HANDLE)
        allocator.notify_shape(name, tuple(value.shape))
        return address


class FakeEngine:
    """An engine of a network: `function` takes and gives its tensors, `host` and `open` name some of them."""

    def __init__(
        self,
        inputs: dict[str, tuple[str, tuple[int, ...]]],
        outputs: dict[str, tuple[str, tuple[int, ...]]],
        function: Callable[..., Sequence[torch.Tensor]],
        *,
        host: Sequence[str] = (),
        open: Sequence[str] = (),
        alias: dict[str, str] | None = None,
        profile: Profile | None = None,
    ) -> None:
        self.network = Network("net", _tensors(inputs), _tensors(outputs), (), profile=profile)
        self.function, self.host, self.open = function, host, open
        self.alias = alias or {}
        self.calls: list[Any] = []
        self.refuse: set[str] = set()
        self.tensors = [*self.network.inputs, *self.network.outputs]
        self.num_io_tensors = len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        """Not in the order of the network."""
        return self.tensors[-1 - index].name

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def get_tensor_dtype(self, name: str) -> Any:
        return to_trt(torch_dtype(self.tensor(name).dtype))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.tensor(name).shape

    def get_tensor_location(self, name: str) -> Any:
        return trt.TensorLocation.HOST if name in self.host else trt.TensorLocation.DEVICE

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self.alias.get(name)

    device_memory_size_v2 = 1000

    def create_runtime_config(self) -> FakeConfig:
        return FakeConfig()

    def create_execution_context(self, runtime_config: FakeConfig) -> FakeContext | None:
        if "create_execution_context" in self.refuse:
            say("fake out of memory")
            return None
        return FakeContext(self, runtime_config)


def _tensors(rows: dict[str, tuple[str, tuple[int, ...]]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, dtype, shape) for name, (dtype, shape) in rows.items())
