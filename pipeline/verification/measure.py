"""Measure the agreement of a compiled program with eager PyTorch on samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import torch
from attrs import evolve, field, frozen
from torch.utils._pytree import tree_leaves, tree_unflatten

from pipeline.aten.types import Leaf
from pipeline.compiled import Compiled, CompiledModule, Executor
from pipeline.compose.events import report
from pipeline.frozen import FrozenDict
from pipeline.program import Output, Program
from pipeline.records.agreement import Agreement, OutputAgreement, versions
from pipeline.runtime.state import find_buffer
from pipeline.trt import has_gpu
from pipeline.verification.bounds import MULTIPLE
from pipeline.verification.recompile import check_comparable
from pipeline.verification.reference import NotComparableError, Reference, bounds_of, random_outputs
from pipeline.verification.samples import Given, samples

RANDOM = "it depends on random numbers"


@frozen(slots=False)
class Comparison:
    """The reference for all programs compiled from the same program: samples, and eager's results for them.

    names: the outputs' names. unjudged: the reason why an output is not compared, by its index.
    """

    references: tuple[Reference, ...] = field(repr=False)
    executor: Executor
    names: tuple[str, ...]
    unjudged: FrozenDict[int, str] = field(factory=FrozenDict)
    skipped: FrozenDict[str, str] = field(factory=FrozenDict)
    tf32: bool = False

    @classmethod
    def of(
        cls, program: Program, executor: Executor | None = None, inputs: Given = None, multiple: float = MULTIPLE
    ) -> Comparison:
        """Run eager on the samples of a program.

        Raises:
            PipelineError: the program was loaded, and its file lacks the program for eager, or weights.
        """
        check_comparable(program)
        executor = executor or ("tensorrt" if has_gpu() else "reference")
        source = program.source or program
        tf32 = runs_in_tf32(executor)
        device = torch.device("cuda", torch.cuda.current_device()) if executor == "tensorrt" else torch.device("cpu")
        found, skipped = list[Reference](), dict[str, str]()
        tried, bounds = samples(program, source, inputs), bounds_of(source, device, tf32, multiple)
        for i, sample in enumerate(tried):
            report(i, 2 * len(tried), f"eager, {sample.name}")
            try:
                found.append(Reference.of(sample, source, program.parameters, device, tf32, bounds))
            except NotComparableError as error:
                skipped[sample.name] = error.message
        random = {i: RANDOM for i, is_random in enumerate(random_outputs(program)) if is_random}
        return cls(tuple(found), executor, tuple(output_names(program)), FrozenDict(random), FrozenDict(skipped), tf32)

    def agreement(self, compiled: Compiled, only: frozenset[tuple[str, str]] | None = None) -> Agreement:
        """Measure a program's agreement with eager; ``only`` restricts it to some outputs and samples."""
        rows: list[OutputAgreement] = []
        wanted = [r for r in self.references if only is None or any(r.sample.name == sample for _, sample in only)]
        modules = cache(lambda: compiled.module(self.executor))
        for i, reference in enumerate(wanted):
            report(len(wanted) + i, 2 * len(wanted), f"the program, {reference.sample.name}")
            try:
                rows += self.judged(reference, results_of(modules(), reference))
            except (RuntimeError, ValueError, TypeError) as error:  # the program does not run
                said = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                empty = OutputAgreement("", reference.sample.name, float("inf"), raised=said)
                rows += [evolve(empty, output=name) for name in self.names]
        if only is not None:
            rows = [row for row in rows if (row.output, row.sample) in only]
        sizes = FrozenDict({r.sample.name: r.sample.sizes for r in self.references})
        return Agreement(
            tuple(rows), self.executor, gpu_name(self.executor), sizes, versions(), self.tf32, self.skipped
        )

    def judged(
        self, reference: Reference, ours: Sequence[Leaf], source: Literal["graph", "module"] = "graph"
    ) -> list[OutputAgreement]:
        """Return the rows of a sample, from the results of ``source``."""
        rows = list[OutputAgreement]()
        for i, (name, value) in enumerate(zip(self.names, ours, strict=True)):
            row = OutputAgreement(name, reference.sample.name, source=source)
            unjudged = self.unjudged.get(i)
            rows.append(evolve(row, unjudged=unjudged) if unjudged else reference.judged(row, i, value))
        return rows


def results_of(module: CompiledModule, reference: Reference) -> list[Leaf]:
    """Run a module; return its results and mutated buffers and inputs, in the order of its program's outputs."""
    for name in module.program.buffers.values():
        find_buffer(module, name).copy_(reference.parameters[name].detach())
    return called(
        lambda *args, **kwargs: tree_leaves(module(*args, **kwargs)),
        module.program,
        reference,
        lambda name: find_buffer(module, name).clone(),
    )


def called(
    call: Callable[..., Sequence[Leaf]], program: Program, reference: Reference, state: Callable[[str], Leaf]
) -> list[Leaf]:
    """Call on copies of a sample's inputs; return the leaves of the result, and the mutated inputs and buffers (from
    ``state``), in the order of the program's outputs."""
    leaves = [v.to(reference.device, copy=True) if isinstance(v, torch.Tensor) else v for v in reference.inputs]
    args, kwargs = tree_unflatten(leaves, program.in_spec)
    returned = iter(call(*args, **kwargs))
    given = dict(zip((port.name for port in program.inputs), leaves, strict=True))

    def value(output: Output) -> Leaf:
        if output.kind == "user":
            return next(returned)
        return given[output.target] if output.kind == "input" else state(output.target)

    return [value(output) for output in results(program)]


def results(program: Program) -> list[Output]:
    """Return the outputs that the model returns or mutates, without outputs that only check a call."""
    return [output for output in program.outputs if output.kind in ("user", "buffer", "input")]


def output_names(program: Program) -> list[str]:
    """Return the names of outputs (``logits``, ``hidden_states.0``; ``output``) and of mutated buffers and inputs."""
    return [
        o.name or f"output.{i}" if o.kind == "user" else f"{o.kind} {o.target} after the call"
        for i, o in enumerate(results(program))
    ]


def runs_in_tf32(executor: Executor) -> bool:
    """Return whether the executor computes float32 matmuls in TF32, as engines do on a GPU."""
    return executor == "tensorrt" and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"


def gpu_name(executor: Executor) -> str:
    """Return the name of the GPU on which programs run; empty for the reference executor."""
    return torch.cuda.get_device_name() if executor == "tensorrt" else ""
