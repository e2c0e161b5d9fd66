"""Measure, on one sample input, the error of a compiled program against the model in eager PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten

from pipeline.cli.sources import Source
from pipeline.compiled import Compiled, Executor
from pipeline.verification.samples import create_sample, tuned_sizes


@frozen
class Agreement:
    """The largest difference between a compiled program's outputs and eager PyTorch's, over all outputs.

    absolute: the largest absolute difference; infinite if an element is NaN or infinite in only one of the two results.
    relative: the difference divided by the largest finite magnitude in eager's output.
    executor: the executor that ran the engines, ``"tensorrt"`` or ``"reference"``.
    """

    absolute: float
    relative: float
    executor: Executor

    def __str__(self) -> str:
        return f"{self.absolute:.2g} absolute, {self.relative:.2g} relative ({self.executor} executor)"


def measure_agreement(compiled: Compiled, source: Source) -> Agreement:
    """Measure the error of a compiled program against the original model in eager PyTorch, on inputs of the optimal
    sizes: the model's own, or random ones."""
    module, program = compiled.module(), compiled.program
    sample = create_sample(program, tuned_sizes(program)[0])
    (args, kwargs), (eager_args, eager_kwargs) = (sample.arguments(program, torch.device("cpu")) for _ in range(2))
    ours = module(*args, **kwargs)
    model = source.model.module() if isinstance(source.model, ExportedProgram) else source.model
    with torch.no_grad():
        eager = model(*eager_args, **eager_kwargs)
    return largest_difference(ours, eager, module.executor)


def largest_difference(compiled_outputs: object, eager_outputs: object, executor: Executor = "reference") -> Agreement:
    """Return the largest errors of outputs that ``executor`` computed; raise a `ValueError` for another structure."""
    (left, spec), (right, expected) = tree_flatten(compiled_outputs), tree_flatten(eager_outputs)
    if spec != expected:
        raise ValueError(f"the compiled program returns the structure {spec}, but eager PyTorch returns {expected}")
    pairs = [_absolute_and_relative_error(i, a, b) for i, (a, b) in enumerate(zip(left, right, strict=True))]
    worst = [max((float(pair[k]) for pair in pairs), default=0.0) for k in (0, 1)]
    return Agreement(worst[0], worst[1], executor)


def _absolute_and_relative_error(output_index: int, compiled: Any, eager: Any) -> tuple[float, float]:
    if not isinstance(eager, torch.Tensor):
        return (0.0, 0.0) if compiled == eager else (float("inf"), float("inf"))
    kinds = [f"{each.dtype}{list(each.shape)}" for each in (compiled, eager)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"output {output_index} is {kinds[0]} when compiled, but {kinds[1]} in eager PyTorch")
    a, b = compiled.detach().cpu(), eager.detach().cpu()
    same = (a == b) | ((a != a) & (b != b))
    kind = torch.complex128 if a.is_complex() else torch.float64
    gap = torch.where(same, 0, (a.to(kind) - b.to(kind)).abs()).nan_to_num(nan=float("inf"))
    size = b.to(kind).abs().nan_to_num(0, 0, 0)
    absolute = float(gap.max()) if gap.numel() else 0.0
    return absolute, absolute / (float(size.max()) or 1.0) if absolute else 0.0
