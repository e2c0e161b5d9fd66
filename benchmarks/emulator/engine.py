"""Runs the kernels of a plan, one after the other, in memory as the plan lays it out."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from benchmarks.emulator.plan import BLOCK, NotEmulated, Plan, Tensor
from benchmarks.emulator.sources import COMPILER, functions
from pipeline.aten.types import Argument
from pipeline.compiled import Compiled
from pipeline.runtime import module

__all__ = ["COMPILER", "emulated", "run"]

UNWRITTEN: Final = 0x7F
"""The byte that memory has before it is written: as floats, large numbers."""
_NUMBERED = re.compile(r"\.\d+(_\d+)?$")


def run(plan: bytes | Plan, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return an engine's outputs.

    Args:
        plan: the serialized engine, as TensorRT-RTX makes it, or what was read of it.
        inputs: by the network's names, contiguous.

    Raises:
        NotEmulated: it has kernels without a source, sizes that vary, or there is no compiler.
    """
    return _Machine(plan if isinstance(plan, Plan) else Plan.of(plan)).run(inputs)


@contextmanager
def emulated() -> Iterator[None]:
    """Modules that are made for the executor ``"reference"`` within this context run their engines' kernels."""

    def runner(compiled: Compiled, index: int, parameters: Argument) -> Argument:
        network, machine = compiled.networks[index], _Machine(Plan.of(bytes(compiled.engines[index].plan)))
        names = [tensor.name for tensor in network.inputs]

        made = {_name(name) for name in machine.plan.outputs}
        if renamed := [tensor.name for tensor in network.outputs if tensor.name not in made]:
            raise NotEmulated(f"the output {renamed[0]} has another name in the plan")

        def call(inputs: Sequence[Argument], turn: object = None) -> list[torch.Tensor]:
            found = machine.run(dict(zip(names, map(torch.as_tensor, inputs), strict=True)))
            return [found[tensor.name] for tensor in network.outputs]

        return call

    own, module._reference_runner = module._reference_runner, runner
    try:
        yield
    finally:
        module._reference_runner = own


def _name(tensor: str) -> str:
    """The network's name of an input or output: plans number them."""
    return _NUMBERED.sub("", tensor)


class _Machine:
    """An engine's kernels, and its memory."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        missing = [call.kernel for call in plan.calls if call.kernel not in plan.sources]
        if missing:
            raise NotEmulated(f"{missing[0]} has no source")
        unnamed = [name for name in plan.outputs if name not in plan.tensors]
        if unnamed:
            raise NotEmulated(f"{unnamed[0]} is no tensor of the program")
        self.functions = functions(plan.sources[name] for name in dict.fromkeys(call.kernel for call in plan.calls))
        self.memory = {name: _bytes(size) for name, size in plan.regions.items()}
        self.constants = torch.frombuffer(bytearray(plan.constants or b"\0"), dtype=torch.uint8)

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs by name."""
        for name in (*self.plan.inputs, *self.plan.outputs):
            tensor = self.plan.tensors[name]
            self.memory[name] = _bytes(tensor.extent * tensor.dtype.itemsize)
        for name in self.plan.inputs:
            given = inputs[_name(name)].contiguous().reshape(-1).view(torch.uint8)
            self.memory[name][: given.numel()] = given
        for call in self.plan.calls:
            if 0 in call.grid:
                continue
            args = (ctypes.c_void_p * len(call.args))(*map(self.address, call.args))
            grid, block = ((ctypes.c_uint * 3)(*sizes) for sizes in (call.grid, call.block))
            if not self.functions[call.kernel](args, grid, block, not call.is_elementwise):
                raise NotEmulated(f"{call.kernel} does not end")
        return {_name(name): self.output(self.plan.tensors[name]) for name in self.plan.outputs}

    def output(self, tensor: Tensor) -> torch.Tensor:
        """A copy of an output."""
        size = tensor.extent * tensor.dtype.itemsize
        made = self.memory[tensor.name][:size].view(tensor.dtype)
        return torch.as_strided(made, tensor.sizes, tensor.strides).clone()

    def address(self, name: str) -> int:
        """Where a tensor lies."""
        tensor = self.plan.tensors[name]
        if tensor.base:
            return self.address(tensor.base) + tensor.offset
        if tensor.is_constant:
            return self.constants.data_ptr() + self.plan.place(tensor)
        return self.memory[tensor.region or name].data_ptr() + tensor.offset


def _bytes(size: int) -> torch.Tensor:
    """Memory; some kernels read beyond its end, and drop what they read."""
    return torch.full((size + BLOCK,), UNWRITTEN, dtype=torch.uint8)
