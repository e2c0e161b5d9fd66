"""Access the model's parameters with the values that they had at compile time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from attrs import evolve

from pipeline.compiled import Compiled
from pipeline.errors import ExecutionError
from pipeline.frozen import FrozenDict
from pipeline.program import Program, tensor_version
from pipeline.runtime.opened_file import FileWeights


class Unchanged(Mapping[str, torch.Tensor]):
    """The model's own parameters, not copied; reading one that was changed in place raises an ``ExecutionError``."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = stored_value(self.program.parameters, name)
        if tensor_version(tensor) != self.program.versions.get(name, tensor_version(tensor)):
            raise ExecutionError(
                f"the weight {name} was changed in place after compiling",
                "create compiled.module() before changing weights, or use pipeline.refit_module_weights",
            )
        return tensor.detach()

    def __iter__(self) -> Iterator[str]:
        return iter(self.program.parameters)

    def __len__(self) -> int:
        return len(self.program.parameters)


class Snapshot(Unchanged):
    """Copies of the model's parameters, made when first read; later changes of the model do not affect them."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.copies: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.copies:
            self.copies[name] = super().__getitem__(name).clone()
        return self.copies[name]


def stored_value(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return the tensor of this name; raise an `ExecutionError` if the file it was loaded from has no values for it."""
    tensor = tensors[name]
    if tensor.is_meta:
        why = f": {tensors.absent}" if isinstance(tensors, FileWeights) and tensors.absent else ""
        raise ExecutionError(
            f"the tensor {name} has no value{why}",
            "restore the weights file, pass all weights to pipeline.refit_module_weights, or save the program with "
            'weights="inside"; on a GPU, engines that contain their weights run without the weights file',
        )
    return tensor


def without_parameters(compiled: Compiled) -> Compiled:
    """Return the program without the model's tensors, which loaded engines do not need."""
    program = evolve(compiled.program, parameters=FrozenDict(), examples=FrozenDict(), source=None)
    return evolve(compiled, partitioned=evolve(compiled.partitioned, program=program), literals=FrozenDict())
