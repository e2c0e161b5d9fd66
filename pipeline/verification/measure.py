"""Measure the errors of a compiled program against eager PyTorch on sample inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, get_args

import torch
from attrs import evolve, field, frozen
from torch.utils._pytree import tree_leaves, tree_unflatten

from pipeline.aten.types import Leaf
from pipeline.compiled import Compiled, CompiledModule, Executor
from pipeline.compose.events import report
from pipeline.errors import ExecutionError
from pipeline.frozen import FrozenDict
from pipeline.program import Output, Program
from pipeline.records.agreement import Agreement, OutputAgreement, versions
from pipeline.runtime.state import find_buffer
from pipeline.trt import has_gpu
from pipeline.verification.bounds import MULTIPLE
from pipeline.verification.recompile import check_comparable
from pipeline.verification.reference import NotComparableError, Reference, output_bounds, random_outputs
from pipeline.verification.samples import UserInputs, create_samples

RANDOM = "it depends on random numbers"


@frozen(slots=False)
class Comparison:
    """What compiled programs of one captured program are compared with: eager's results (``references``) by sample.

    names: the outputs' names. unjudged: for outputs that are not compared, the reason, by the output's index. skipped:
        the reason why eager does not run a sample, by the sample's name.
    """

    references: tuple[Reference, ...] = field(repr=False)
    executor: Executor
    names: tuple[str, ...]
    unjudged: FrozenDict[int, str] = field(factory=FrozenDict)
    skipped: FrozenDict[str, str] = field(factory=FrozenDict)
    tf32: bool = False

    @classmethod
    def create(
        cls, program: Program, executor: Executor | None = None, inputs: UserInputs = None, multiple: float = MULTIPLE
    ) -> Comparison:
        """Run a program on samples in eager PyTorch. Later, errors up to ``multiple`` times eager's are accepted.

        Raises:
            PipelineError: the program was loaded from a file that lacks weights or the program for eager PyTorch.
        """
        check_comparable(program)
        executor = choose_executor(executor)
        source = program.source or program
        tf32 = runs_in_tf32(executor)
        device = torch.device("cuda", torch.cuda.current_device()) if executor == "tensorrt" else torch.device("cpu")
        references, skipped = list[Reference](), dict[str, str]()
        samples, bounds = create_samples(program, source, inputs), output_bounds(source, device, tf32, multiple)
        for i, sample in enumerate(samples):
            report(i, 2 * len(samples), f"eager, {sample.name}")
            try:
                references.append(Reference.compute(sample, source, program.parameters, device, tf32, bounds))
            except NotComparableError as error:
                skipped[sample.name] = error.message
        random = {i: RANDOM for i, is_random in enumerate(random_outputs(program)) if is_random}
        return cls(
            tuple(references), executor, tuple(output_names(program)), FrozenDict(random), FrozenDict(skipped), tf32
        )

    def measure_agreement(self, compiled: Compiled, only: frozenset[tuple[str, str]] | None = None) -> Agreement:
        """Measure a program's errors against eager, or ``only`` those of some outputs: (output name, sample name)."""
        rows: list[OutputAgreement] = []
        references = [r for r in self.references if only is None or any(r.sample.name == sample for _, sample in only)]
        modules = cache(lambda: compiled.module(self.executor))
        for i, reference in enumerate(references):
            report(len(references) + i, 2 * len(references), f"the program, {reference.sample.name}")
            try:
                rows += self.compare_sample(reference, run_module(modules(), reference))
            except (RuntimeError, ValueError, TypeError) as error:  # the program does not run
                message = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                empty = OutputAgreement("", reference.sample.name, float("inf"), raised=message)
                rows += [evolve(empty, output=name) for name in self.names]
        if only is not None:
            rows = [row for row in rows if (row.output, row.sample) in only]
        sizes = FrozenDict({r.sample.name: r.sample.sizes for r in self.references})
        return Agreement(
            tuple(rows), self.executor, gpu_name(self.executor), sizes, versions(), self.tf32, self.skipped
        )

    def compare_sample(
        self, reference: Reference, ours: Sequence[Leaf], source: Literal["graph", "module"] = "graph"
    ) -> list[OutputAgreement]:
        """Compare a sample's results with eager's; return a row for each output. ``source``: what returned ``ours``."""
        rows = list[OutputAgreement]()
        for i, (name, value) in enumerate(zip(self.names, ours, strict=True)):
            row = OutputAgreement(name, reference.sample.name, source=source)
            unjudged = self.unjudged.get(i)
            rows.append(evolve(row, unjudged=unjudged) if unjudged else reference.measure_errors(row, i, value))
        return rows


def run_module(module: CompiledModule, reference: Reference) -> list[Leaf]:
    """Run a compiled module on the sample of ``reference``; return results and mutated tensors, in output order."""
    for name in module.program.buffers.values():
        find_buffer(module, name).copy_(reference.parameters[name].detach())
    return call_on_copies(
        lambda *args, **kwargs: tree_leaves(module(*args, **kwargs)),
        module.program,
        reference,
        lambda name: find_buffer(module, name).clone(),
    )


def call_on_copies(
    call: Callable[..., Sequence[Leaf]], program: Program, reference: Reference, buffer_value: Callable[[str], Leaf]
) -> list[Leaf]:
    """Call a function on copies of the sample inputs of ``reference``; return its results, mutated inputs and mutated
    buffers (read by ``buffer_value``) in the order of the program's outputs."""
    leaves = [v.to(reference.device, copy=True) if isinstance(v, torch.Tensor) else v for v in reference.inputs]
    args, kwargs = tree_unflatten(leaves, program.in_spec)
    returned = iter(call(*args, **kwargs))
    by_name = dict(zip((port.name for port in program.inputs), leaves, strict=True))

    def value(output: Output) -> Leaf:
        if output.kind == "user":
            return next(returned)
        return by_name[output.target] if output.kind == "input" else buffer_value(output.target)

    return [value(output) for output in compared_outputs(program)]


def compared_outputs(program: Program) -> list[Output]:
    """Return the outputs to compare: results and mutated tensors, but not conditions that a call must satisfy."""
    return [output for output in program.outputs if output.kind in ("user", "buffer", "input")]


def output_names(program: Program) -> list[str]:
    """Return each output's name: ``logits``, ``hidden_states.0``, ``output``, or a mutated buffer or input."""
    return [
        o.name or f"output.{i}" if o.kind == "user" else f"{o.kind} {o.target} after the call"
        for i, o in enumerate(compared_outputs(program))
    ]


def choose_executor(executor: Executor | None) -> Executor:
    """Return the executor that runs programs: TensorRT if there is a GPU and None is given. Raise a `ValueError` for
    another word, and an `ExecutionError` if TensorRT has no GPU here."""
    if executor not in (known := (None, *get_args(Executor))):
        raise ValueError(f"executor must be one of {', '.join(map(repr, known))}, got {executor!r}")
    if executor == "tensorrt" and not has_gpu():
        raise ExecutionError("TensorRT engines need a GPU, but torch finds none on this machine")
    return executor or ("tensorrt" if has_gpu() else "reference")


def runs_in_tf32(executor: Executor) -> bool:
    """Return whether an executor computes float32 matmuls in TF32, as engines do on a GPU."""
    return executor == "tensorrt" and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"


def gpu_name(executor: Executor) -> str:
    """Return the name of the GPU on which an executor runs programs; empty for the reference executor."""
    return torch.cuda.get_device_name() if executor == "tensorrt" else ""
