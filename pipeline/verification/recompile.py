"""Recompile a program with the stages of its own pipeline from `validate` on.
Report what a loaded program lacks for recompilation or verification."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen
from toolz import pipe

from pipeline.aten.tensor_type import TensorType
from pipeline.compiled import Compiled
from pipeline.compose.stage_signature import AnyStage
from pipeline.errors import PipelineError
from pipeline.program import Built, Partitioned, Program, Validated
from pipeline.runtime.snapshot import stored_value


def check_comparable(program: Program) -> None:
    """Raise an error if eager PyTorch cannot run this program, which verification requires.

    Raises:
        PipelineError: the program's file lacks the program for eager, or this process lacks operators.
        ExecutionError: the program was loaded without its weights.
    """
    if program.source is None and _was_loaded(program):
        raise PipelineError(
            "the loaded file has no program for eager PyTorch, with which results could be compared",
            "import the libraries of the model's operators, and allow these with pipeline.load(…, operators={…}); "
            "or save the program again, if an earlier version of pipeline saved it",
        )
    for name in program.parameters:
        stored_value(program.parameters, name)


def check_compilable(program: Program) -> None:
    """Raise an error if a program cannot be recompiled, because its file or cache entry stores no converters.

    Raises:
        PipelineError: the program was loaded, or comes from a cache.
    """
    if _was_loaded(program):
        raise PipelineError(
            "the program was loaded from a file or cache, which stores no converters to compile its parts again",
            "compile the model in this process to heal or bisect it; to compare only, use pipeline.verify()",
        )


def _was_loaded(program: Program) -> bool:
    """Return whether the program's graph was loaded from a file, which stores no fake tensors."""
    return any(isinstance(node.meta.get("val"), TensorType) for node in program.graph.nodes)


@frozen
class Recompiler:
    """The stages that recompile a program: ``validate``, ``partition``, and all later ones, up to `Compiled`."""

    validate: AnyStage
    partition: AnyStage
    rest: tuple[AnyStage, ...] = field()

    @classmethod
    def from_stages(cls, stages: Sequence[AnyStage], unbuilt: AnyStage | None = None) -> Recompiler:
        """Create a recompiler from a pipeline's stages. ``unbuilt``: a stage that replaces the one that builds engines,
        if the reference executor runs the recompiled programs.

        Raises:
            PipelineError: one of `Validated`, `Partitioned`, `Built` and `Compiled` is returned by no stage.
        """
        index: dict[object, int] = {}
        for i, stage in enumerate(stages):
            index.setdefault(stage.gives, i)
        if missing := [record.__name__ for record in (Validated, Partitioned, Built, Compiled) if record not in index]:
            raise PipelineError(
                f"the program cannot be compiled again: no stage of its pipeline returns {' or '.join(missing)}",
                'verify(on_failure="heal") and bisect need these stages in the pipeline itself, not in a nested one',
            )

        rest = list(stages[index[Partitioned] + 1 : index[Compiled] + 1])
        if unbuilt is not None:
            rest[index[Built] - index[Partitioned] - 1] = unbuilt
        return cls(stages[index[Validated]], stages[index[Partitioned]], tuple(rest))

    def compile_partitioned(self, partitioned: Partitioned) -> Compiled:
        """Compile a program that is already partitioned into engines and PyTorch segments."""
        compiled: Compiled = pipe(partitioned, *self.rest)
        return compiled

    def compile_validated(self, validated: Validated) -> Compiled:
        """Compile a program with these verdicts on its nodes (see `Verdict`), from the stage ``partition`` on."""
        return self.compile_partitioned(self.partition(validated))
