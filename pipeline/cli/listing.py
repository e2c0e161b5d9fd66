"""Create the table of supported operators that ``pipeline support`` prints."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import torch
from toolz import groupby

from pipeline.aten.types import Target
from pipeline.cli.usage import UsageError
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import get_decompositions
from pipeline.converters.support import SupportRow, support_table
from pipeline.converters.unsupported import REASONS
from pipeline.decomposition.complex_rules import RULES
from pipeline.stages.validate import DTYPES, MAX_RANK


def operators_text() -> str:
    """Return the table of supported operators: a line for each operator that has a converter."""
    rows = support_table(DYNAMO_CONVERTERS)
    width = max(len(row.target) for row in rows)
    lines = [
        f"{row.target:<{width}}  {'dynamic' if row.dynamic else 'static ':<7}  {' '.join(row.limits)}".rstrip()
        for row in rows
    ]
    return "\n".join([f"{len(rows)} operators have a converter (`pipeline support TARGET` shows more)", "", *lines])


PAGE_HEAD = """# Operators

After this page you know where an operator runs, and within which limits. `pipeline support TARGET` shows the schema,
the converter and the limits of one operator; `pipeline support --markdown` writes this page.

Names without a namespace are of `aten`; a name without an overload stands for all its overloads that we support.
Composite operators are not listed: PyTorch defines them by other operators, to which they are decomposed.
All other operators run in PyTorch, and `Compiled.coverage` has the reason.

In engines, a tensor has rank {rank} at most and one of the dtypes {dtypes}.
TensorRT 10 and 11 also have int8 tensors; TensorRT-RTX has int8 for quantized weights only. Operators on float64 run in
PyTorch, or in float32 if `truncate_double=True`; values that are later cast to float32, such as rotary positions, are
computed in engines (the pass `split_doubles`). Complex values become pairs of reals.
"""


def operators_page() -> str:
    """Return the text of the documentation page docs/operators.md."""
    rows = support_table(DYNAMO_CONVERTERS)
    dtypes = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in DTYPES - {torch.int8}))
    known = [row.target for row in rows]
    own = sorted(map(str, DECOMPOSITIONS))
    torchs = sorted(set(map(str, get_decompositions(DECOMPOSITIONS))) - {*own, *known})
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        fixed = [] if row.dynamic else ["The sizes must be known when the engine is built."]
        groups.setdefault(("in an engine", " ".join([*fixed, *row.limits])), []).append(row.target)
    groups["decomposed by us", ""], groups["decomposed by torch", ""] = own, torchs
    groups["in an engine, on complex numbers", ""] = sorted(map(str, RULES))
    for op, reason in sorted(REASONS.items(), key=str):
        if op not in RULES:
            groups.setdefault(("in PyTorch", reason), []).append(str(op))
    order = sorted(groups.items(), key=lambda group: (-("engine" in group[0][0]), group[0]))
    lines = [[where, _abbreviate_names(names, known), said] for (where, said), names in order]
    table = [["runs", "operators", "limits, or the reason"], ["---"] * 3, *lines]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in table]
    page = [PAGE_HEAD.format(rank=MAX_RANK, dtypes=dtypes), *(f"| {' | '.join(cells)} |" for cells in escaped)]
    return "\n".join(page)


def _abbreviate_names(targets: list[str], known_operators: Sequence[str]) -> str:
    """Join operator names: ``aten.add.Tensor`` becomes `add.Tensor`; all known overloads of aten.add become `add`."""
    packets, known = (groupby(lambda name: name.rpartition(".")[0], names) for names in (targets, known_operators))
    short = ([packet] if {*found} >= {*known.get(packet, ())} else found for packet, found in packets.items())
    return ", ".join(f"`{name.removeprefix('aten.')}`" for names in short for name in names)


def describe_operator(typed_name: str) -> tuple[str, bool]:
    """Return a text about an operator's converters and decompositions, and True; if it has none, why, and False."""
    name = re.sub(r"^torch\.(ops\.|nn\.functional\.)?", "", typed_name.strip()).replace("::", ".")
    if not name:
        raise UsageError("the operator's name is empty; `pipeline support` lists all operators with a converter")
    rows = [row for row in support_table(DYNAMO_CONVERTERS) if _matches_name(row.target, name)]
    seen = {row.target for row in rows}
    apart = [op for op in get_decompositions(DECOMPOSITIONS) if _matches_name(str(op), name) and str(op) not in seen]
    if rows or apart:
        return "\n\n".join([*map(_describe_row, rows), *map(_describe_decomposed, sorted(apart, key=str))]), True
    if known := [op for op in _aten_operators() if _matches_name(op, name)]:
        reasons = {str(op): reason for op, reason in REASONS.items()}
        none = "it has no converter and no decomposition"
        return "\n".join(f"{op}\n  it runs in PyTorch: {reasons.get(op, none)}" for op in known), False
    raise UsageError(_unknown_operator_message(typed_name, name))


def _matches_name(target: str, typed_name: str) -> bool:
    """Return whether a name that the user typed, with or without namespace and overload, refers to this operator."""
    return any(target == full or target.startswith(f"{full}.") for full in (typed_name, f"aten.{typed_name}"))


def _describe_row(row: SupportRow) -> str:
    """Return an operator's name, schema, converters and limits as text, each on a line such as ``schema: …``."""
    facts = {
        "schema": row.schema,
        "converter": ", ".join(row.converters),
        "dynamic shapes": "yes" if row.dynamic else "no",
        "data-dependent shape": "yes" if row.allocator else "",
        "limits": " ".join(row.limits) or "none beside those of all operators",
    }
    return "\n".join([row.target, *(f"  {name}: {value}" for name, value in facts.items() if value)])


def _describe_decomposed(op: torch._ops.OpOverload[..., Target]) -> str:
    """Return the text about an operator that has no converter since it is decomposed, by us or torch."""
    whose = "our" if op in DECOMPOSITIONS else "torch's"
    return f"{op}\n  schema: {op._schema}\n  no converter: {whose} decomposition replaces it before conversion"


def _aten_operators() -> list[str]:
    """Return the names of all ATen operators of the installed torch."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return sorted(f"{name.replace('::', '.')}{'' if '.' in name else '.default'}" for name in names)


def _unknown_operator_message(typed_name: str, normalized_name: str) -> str:
    overloads = {str(row.target) for row in support_table(DYNAMO_CONVERTERS)} | set(_aten_operators())
    packets = {".".join(op.split(".")[:2]) for op in overloads}
    wanted = normalized_name if normalized_name.startswith("aten.") else f"aten.{normalized_name}"
    close = difflib.get_close_matches(wanted, packets, 3, 0.8) or difflib.get_close_matches(wanted, overloads, 3, 0.8)
    return f"there is no operator {typed_name!r}" + (f"; did you mean {' or '.join(close)}?" if close else "")
