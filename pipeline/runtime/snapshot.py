"""The model's parameters as they were when it was compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from attrs import evolve

from pipeline.compiled import Compiled
from pipeline.errors import ExecutionError
from pipeline.frozen import FrozenDict
from pipeline.program import Program, version


class Snapshot(Mapping[str, torch.Tensor]):
    """Copies of the model's parameters as they were when it was compiled, made as they are asked for.

    A parameter that has been changed in place since is an ``ExecutionError``: its value is gone.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.copies: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.copies:
            tensor = self.program.parameters[name]
            if version(tensor) != self.program.versions.get(name, version(tensor)):
                raise ExecutionError(
                    f"{name} changed in place after compiling",
                    "call compiled.module() before changing the model, or use pipeline.refit_module_weights",
                )
            self.copies[name] = tensor.detach().clone()
        return self.copies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.program.parameters)

    def __len__(self) -> int:
        return len(self.program.parameters)


def without_parameters(compiled: Compiled) -> Compiled:
    """The same, letting go of the model's tensors: what has loaded its engines needs them no more."""
    program = evolve(compiled.program, parameters=FrozenDict(), examples=FrozenDict(), source=None)
    return evolve(compiled, partitioned=evolve(compiled.partitioned, program=program), literals=FrozenDict())
