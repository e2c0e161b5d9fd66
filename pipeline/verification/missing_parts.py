"""Report what a loaded program lacks, before it is verified or compiled again."""

from __future__ import annotations

from pipeline.aten.tensor_type import TensorType
from pipeline.errors import PipelineError
from pipeline.program import Program
from pipeline.runtime.snapshot import present


def check_comparable(program: Program) -> None:
    """Raise an error if eager PyTorch cannot run a program.

    Raises:
        PipelineError: its file lacks the program for eager, or this process lacks operators that it calls.
        ExecutionError: it was loaded without its weights.
    """
    if program.source is None and _was_loaded(program):
        raise PipelineError(
            "the file lacks the program for eager PyTorch, so there is nothing to verify against",
            "import the libraries whose operators the model calls, and allow them (pipeline.load(…, operators={…})); "
            "or, if its file is of an earlier version, save it again",
        )
    for name in program.parameters:
        present(program.parameters, name)


def check_compilable(program: Program) -> None:
    """Raise an error if a program has no converters with which to compile it again.

    Raises:
        PipelineError: it was loaded, or comes from a cache.
    """
    if _was_loaded(program):
        raise PipelineError(
            "the program was loaded, and a file has no converters to compile parts of it again by",
            "compile the model, and heal or bisect that; pipeline.verify() compares a loaded program",
        )


def _was_loaded(program: Program) -> bool:
    """Return whether the graph comes from a file, which stores no fake tensors."""
    return any(isinstance(node.meta.get("val"), TensorType) for node in program.graph.nodes)
