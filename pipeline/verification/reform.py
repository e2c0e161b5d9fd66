"""Replace nodes of a compiled program by alternative forms."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from pipeline.compiled import Compiled
from pipeline.frozen import FrozenDict
from pipeline.program import Validated
from pipeline.verification.alternative_lowerings import Form, NotPossibleError
from pipeline.verification.recompile import Again


@frozen
class Decision:
    """A decision about nodes: the form that they get together, and the reason."""

    nodes: tuple[str, ...]
    form: Form
    reason: str


def reformed(compiled: Compiled, decisions: Sequence[Decision], again: Again) -> Validated:
    """Return the program in these forms, with verdicts. New nodes of a form must run in engines; nodes that were healed
    before stay healed.

    Raises:
        NotPossibleError: nodes do not have such a form.
    """
    program, verdicts = compiled.program, compiled.partitioned.verdicts
    changed = program
    for each in decisions:
        changed = each.form.rewritten(changed, each.nodes)
    validated = Validated(program, verdicts)
    if changed is not program:
        validated = again.validated(changed)
        there = validated.verdicts.keys() & verdicts.keys()
        healed = {row.node: verdicts[row.node] for row in compiled.healed if row.node in there}
        validated = evolve(validated, verdicts=FrozenDict({**validated.verdicts, **healed}))
    if new := [v for v in validated.verdicts.values() if not v.supported and v.node not in verdicts]:
        raise NotPossibleError("; ".join(map(str, new)))
    for each in decisions:
        validated = each.form.decided(validated, each.nodes, each.reason)
    return validated
