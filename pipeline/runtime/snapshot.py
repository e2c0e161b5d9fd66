"""Read the model's parameters as they were at compile time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from attrs import evolve

from pipeline.compiled import Compiled
from pipeline.errors import ExecutionError
from pipeline.frozen import FrozenDict
from pipeline.program import Program, version
from pipeline.runtime.opened_file import FileWeights, OpenedFile


class Unchanged(Mapping[str, torch.Tensor]):
    """The model's parameters, without copies; reading one that was changed in place raises an ``ExecutionError``."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = present(self.program.parameters, name)
        if version(tensor) != self.program.versions.get(name, version(tensor)):
            raise ExecutionError(
                f"{name} changed in place after compiling",
                "call compiled.module() before changing the model, or use pipeline.refit_module_weights",
            )
        return tensor.detach()

    def __iter__(self) -> Iterator[str]:
        return iter(self.program.parameters)

    def __len__(self) -> int:
        return len(self.program.parameters)


class Snapshot(Unchanged):
    """Copies of the parameters, made at the first access; later changes of the model do not affect them."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.copies: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.copies:
            self.copies[name] = super().__getitem__(name).clone()
        return self.copies[name]


class AbsentWeights(FileWeights):
    """The meta tensors of a program that was loaded without weights, and the reason for their absence."""

    __slots__ = ("reason",)
    reason: str

    def __init__(
        self,
        items: Mapping[str, torch.Tensor],
        reason: str,
        files: tuple[OpenedFile, ...] = (),
        call_bytes: int = 0,
    ) -> None:
        super().__init__(items, files, call_bytes)
        object.__setattr__(self, "reason", reason)

    def __reduce__(self) -> tuple[object, ...]:
        return AbsentWeights, (dict(self._items), self.reason)


def present(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return the tensor of a name; raise `ExecutionError` if it was loaded without its value."""
    tensor = tensors[name]
    if tensor.is_meta:
        why = f": {tensors.reason}" if isinstance(tensors, AbsentWeights) else ""
        raise ExecutionError(
            f"{name} has no value{why}",
            'save with weights="inside", restore the file of weights, or pass all weights to '
            "pipeline.refit_module_weights; on a GPU, engines that contain their weights run without them",
        )
    return tensor


def without_parameters(compiled: Compiled) -> Compiled:
    """Return the program without the model's tensors, which loaded engines do not need."""
    program = evolve(compiled.program, parameters=FrozenDict(), examples=FrozenDict(), source=None)
    return evolve(compiled, partitioned=evolve(compiled.partitioned, program=program), literals=FrozenDict())
