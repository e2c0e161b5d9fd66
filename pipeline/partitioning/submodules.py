"""Find the submodule of each operator, and the sequences of operators that form each submodule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

from attrs import frozen

from pipeline.aten.naming import module_path
from pipeline.partitioning.flow import Flow, Node


@frozen
class Submodules:
    """Selects the submodules that are not split. By ``depth``: each operator belongs to the first ``depth`` names of
    its module's path (2: ``encoder.layer`` for an operator in ``encoder.layer.0``), or to the whole path if that is
    shorter. By ``pattern`` (``encoder.layer.?``): it belongs to the outermost matching module around it."""

    depth: int = 1
    pattern: str | None = None

    def path_of(self, node: Node) -> str | None:
        """Return the path of the unsplit submodule that contains a node; None if there is none."""
        names = module_path(node).split(".")
        prefixes = [".".join(names[: i + 1]) for i in range(len(names))]
        if self.pattern is None:
            return prefixes[min(self.depth, len(names)) - 1] or None
        return next((p for p in prefixes if p and fnmatchcase(p, self.pattern)), None)


Patterns = Sequence[tuple[int, ...]]


def pattern_start_of_moved_operators(submodule_of: Sequence[str | None], patterns: Patterns) -> dict[int, int]:
    """Return {operator: first operator of its pattern} for each operator whose pattern (operators that TensorRT fuses)
    begins in another submodule. The operator moves to that submodule, so no cut between submodules splits a pattern."""
    return {i: pattern[0] for pattern in patterns for i in pattern if submodule_of[i] != submodule_of[pattern[0]]}


def submodule_runs(submodule_of: Sequence[str | None], patterns: Patterns) -> Iterator[tuple[int, ...]]:
    """Yield the operators to keep together: consecutive operators of a submodule, or a pattern (operators that TensorRT
    fuses) outside submodules. A pattern takes the place of its last operator: others are read only inside it."""
    ends, inside = {pattern[-1]: pattern for pattern in patterns}, {i for pattern in patterns for i in pattern[:-1]}
    steps = [ends.get(i, (i,)) for i in range(len(submodule_of)) if i not in inside]
    for key, run in groupby(steps, lambda step: submodule_of[step[0]]):
        if key is None:
            yield from (step for step in run if len(step) > 1)
        else:
            yield tuple(i for step in run for i in step)


def torch_reasons(
    flow: Flow, submodule_of: Sequence[str | None], moved: Mapping[int, int], refused: Mapping[int, str]
) -> dict[int, str]:
    """Return {operator: reason} for operators that run in PyTorch because a ``refused`` one of their submodule does.
    ``moved``: operators that joined another submodule (see `pattern_start_of_moved_operators`)."""
    culprits = {key: flow.nodes[i].name for i in sorted(refused, reverse=True) if (key := submodule_of[i]) is not None}

    def why(i: int, key: str) -> str:
        reason = f"{key} stays in one segment, and its operator {culprits[key]} runs in PyTorch"
        return f"it is fused with {flow.nodes[moved[i]].name}: {reason}" if i in moved else reason

    return {i: why(i, key) for i, key in enumerate(submodule_of) if key in culprits and i not in refused}
