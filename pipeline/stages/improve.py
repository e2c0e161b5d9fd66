"""improve: ``Program`` → ``Program``. Rewrite the graph where TensorRT would not optimize it by itself.

Before: a program in the registry's opset. After: the same program with fewer, larger operators: attention fused into
one operator, batch norms folded into the convolutions before them, linear layers that read one tensor merged. New
constants are folded with their recipes, so that engines can still be refitted.
"""

from __future__ import annotations

from typing import Self

from attrs import evolve, field, frozen

from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.converters.registry import ConverterRegistry
from pipeline.errors import PipelineError
from pipeline.improvements import PASSES, RENAMED, Improvement, Rewriting
from pipeline.program import Program
from pipeline.records.wording import items_of


def _to_passes(value: object) -> tuple[Improvement, ...]:
    """Convert passes, or their names, to a tuple of passes. A `ValueError` for an unknown name lists all names."""
    passes = tuple(map(_to_pass, items_of(value, "passes must be a collection of passes or their names")))
    names, known = [each.name for each in passes], {each.name for each in PASSES}
    for index, each in enumerate(passes):
        if each.after in names[index + 1 :] and each.after not in names[:index]:
            raise ValueError(f"the pass {each} runs after {each.after}: put it behind that pass in passes")
        if each.after and each.after not in known.union(names):
            renamed = f": write {RENAMED[each.after]!r}" if each.after in RENAMED else ""
            raise ValueError(f"the pass {each} runs after {each.after!r}, but there is no such pass{renamed}")
    return passes


def _to_pass(value: object) -> Improvement:
    if isinstance(value, Improvement):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is neither a pass nor the name of a pass")
    known = {each.name: each for each in PASSES}
    if value in RENAMED:
        raise ValueError(f"the pass {value!r} was renamed: write {RENAMED[value]!r}")
    if value not in known:
        raise ValueError(f"there is no pass {value!r}; the passes are {', '.join(known)}")
    return known[value]


def _apply_users_pass(users_pass: Improvement, rewriting: Rewriting) -> None:
    """Apply a pass that is none of ours; raise a `PipelineError` that names it if the graph is no longer valid."""
    users_pass.apply(rewriting)
    try:
        rewriting.graph.lint()
        added = (node for node in rewriting.graph.nodes if node.op == "call_function" and "val" not in node.meta)
        wrong = next((f"the node {node} has no meta['val']" for node in added), "")
    except RuntimeError as error:  # a node reads a later one; the graph follows torch's message
        wrong = str(error).partition("\n")[0]
    if wrong:
        hint = "add calls by rewriting.create or offer before the node that they replace; new calls must not read it"
        raise PipelineError(f"the pass {users_pass} left an invalid graph: {wrong}", hint)


@frozen
class Improve:
    """The improve stage, which runs the rewrites in ``passes`` (given as passes or by name) in order."""

    registry: ConverterRegistry = field(default=DYNAMO_CONVERTERS, repr=False)
    passes: tuple[Improvement, ...] = field(default=PASSES, converter=_to_passes)
    name: str = "improve"

    def __call__(self, program: Program) -> Program:
        """Return the improved program; the argument is not changed."""
        if not self.passes:
            return program
        rewriting = Rewriting(program, self.registry)
        for each in self.passes:
            rewriting.run_keeping_users_calls(each) if each in PASSES else _apply_users_pass(each, rewriting)
        return rewriting.changed_program()

    def without(self, *names: str) -> Self:
        """Return the stage without these passes; raise a `ValueError` for a pass that the stage does not have."""
        left_out = {_to_pass(name).name for name in names}
        if missing := sorted(left_out - {each.name for each in self.passes}):
            raise ValueError(f"the stage {self.name} has no pass {', '.join(missing)}; see its attribute passes")
        return evolve(self, passes=tuple(each for each in self.passes if each.name not in left_out))
