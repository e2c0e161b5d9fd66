"""The state of a compiled program: the buffers that it updates, under their names in the model, and initial values."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from attrs import frozen

from pipeline.errors import ExecutionError
from pipeline.program import Program
from pipeline.runtime.engine_buffers import tensor_at_address
from pipeline.shapes.environment import evaluate_number, expression


@frozen(eq=False)
class InitialValue:
    """The initial value of a buffer. If all elements are equal, usually 0, only a single element is stored."""

    value: torch.Tensor
    shape: tuple[int, ...]

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> InitialValue:
        """Copy the current value of a buffer to the CPU."""
        value = tensor.detach().to("cpu", copy=True).contiguous()
        same = value.numel() > 1 and bool((value.view(-1)[1:] == value.view(-1)[0]).all())
        return cls(value.view(-1)[:1].clone() if same else value, tuple(tensor.shape))

    def new_tensor(self, device: torch.device) -> torch.Tensor:
        """Return a new tensor with this value on a device."""
        return self.write(torch.empty(self.shape, dtype=self.value.dtype, device=device))

    def write(self, tensor: torch.Tensor) -> torch.Tensor:
        """Write this value into a tensor, and return the tensor."""
        return tensor.copy_(self.value.expand(self.shape) if self.value.numel() == 1 else self.value)


def attach_buffer(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Register a tensor as a buffer of a module under a dotted name, as the model has it."""
    owner, leaf = _owner_module(module, name, create=True)
    owner._buffers[leaf] = tensor


def find_buffer(module: torch.nn.Module, name: str) -> torch.Tensor:
    """Return the buffer of a module with this dotted name."""
    owner, leaf = _owner_module(module, name)
    found = owner._buffers[leaf]
    assert found is not None
    return found


def _owner_module(module: torch.nn.Module, name: str, *, create: bool = False) -> tuple[torch.nn.Module, str]:
    """Return the submodule that owns the buffer of this dotted name, and the last part of the name.

    create: whether to create missing submodules.
    """
    *path, leaf = name.split(".")
    for part in path:
        if create and part not in module._modules:
            module._modules[part] = torch.nn.Module()
        module = module._modules[part]  # type: ignore[assignment]
    return module, leaf


def buffer_views(
    program: Program, module: torch.nn.Module, symbols: Mapping[str, int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield for each mutated buffer the name of its placeholder, and the buffer in the shape that the placeholder has
    for these values of symbols. If the buffer has more elements, a view of its first elements has this shape."""
    nodes = {node.name: node.meta["val"] for node in program.graph.nodes if node.name in program.buffers}
    for placeholder, name in program.buffers.items():
        shape = [int(evaluate_number(expression(size), symbols)) for size in nodes[placeholder].shape]
        tensor = find_buffer(module, name)
        if list(tensor.shape) != shape:
            count = torch.Size(shape).numel()
            tensor = tensor.view(-1)[:count].view(shape)
        yield placeholder, tensor


class FlagPool:
    """A pool of bytes in pinned host memory, to which GPUs write flags. A returned byte is reused only after ``PAGE``
    other bytes, since a graph launched earlier may still write to it."""

    PAGE = 4096

    def __init__(self) -> None:
        self._free = deque[torch.Tensor]()

    def take(self) -> torch.Tensor:
        """Return a bool tensor of one element from the pool, set to False."""
        while len(self._free) <= self.PAGE:
            self._free.extend(torch.zeros(self.PAGE, dtype=torch.bool, pin_memory=torch.cuda.is_available()))
        return self._free.popleft().zero_()

    def give(self, flag: torch.Tensor) -> None:
        """Return a flag (a tensor from `take`) that nothing reads any more to the pool."""
        self._free.append(flag)


_flags = FlagPool()


class PositionGuard:
    """Check, without waiting for the GPU, whether a call wrote at positions outside of a buffer (such as a KV cache).

    On the CPU the call itself raises an error. On a GPU each call adds its result to a flag, and a kernel writes the
    flag to host memory, where later calls read it. Writes outside of a buffer never change memory.
    """

    def __init__(self, device: torch.device, buffer_names: str) -> None:
        self.names, self.on_gpu = buffer_names, device.type == "cuda"
        self.flag = torch.zeros((), dtype=torch.bool, device=device)
        self.seen = _flags.take() if self.on_gpu else torch.zeros((), dtype=torch.bool)
        self._there = tensor_at_address(self.seen.data_ptr(), 1, torch.bool, device)[0] if self.on_gpu else self.seen
        self._look: Any = self.seen.numpy()
        if self.on_gpu:
            weakref.finalize(self, _flags.give, self.seen)

    def add_result(self, is_outside: torch.Tensor) -> None:
        """Record whether a call's positions were outside of the buffer. On a GPU two kernels do this (a CUDA graph of
        the call captures them): one updates ``flag``, the other writes it to host memory, where `check` reads it.

        Raises:
            ExecutionError: on the CPU, if the call's positions were outside of the buffer.
        """
        if self.on_gpu:
            torch.logical_or(self.flag, is_outside, out=self.flag)
            torch.logical_or(self.flag, self.flag, out=self._there)  # a kernel: a copy is another kind of graph node
        elif bool(is_outside):
            raise self.error("this call")

    def check(self) -> None:
        """Raise an ``ExecutionError`` if a call that the GPU has finished had positions outside of the buffer."""
        if self._look:
            raise self.error("an earlier call")

    def clear(self) -> None:
        """Forget errors of earlier calls."""
        if self.on_gpu:
            torch.cuda.synchronize(self.flag.device)
        self.flag.zero_()
        self.seen.zero_()

    def error(self, which_call: str) -> ExecutionError:
        """Return the error that "this call" or "an earlier call" (``which_call``) wrote outside of the buffer."""
        return ExecutionError(
            f"{which_call} has positions outside of the buffer {self.names}",
            "call reset() before the next sequence, or compile the model with larger buffers",
        )


def make_position_guard(program: Program, module: torch.nn.Module) -> PositionGuard | None:
    """Return the guard of a program that checks positions in a buffer such as a KV cache; None for other programs."""
    name = next((output.target for output in program.outputs if output.kind == "check"), None)
    if name is None:
        return None
    tensor = find_buffer(module, name)
    return PositionGuard(tensor.device, f"{name} {list(tensor.shape)}")
