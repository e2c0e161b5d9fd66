"""Find differences between programs: operators that moved to or from PyTorch, layers, kernels, sizes, times, errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from attrs import evolve

from pipeline.records.agreement import OutputAgreement
from pipeline.records.profile import Profile
from pipeline.records.wording import format_bytes
from pipeline.viewing.records import Change, NodeView, ProgramView, Row

T = TypeVar("T")
MIN_TIME_CHANGE = 0.1
"""The relative difference below which two times count as equal, since two runs of one program differ by as much."""
PLACE_NAMES = {"tensorrt": "TensorRT", "pytorch": "PyTorch", "host": "the host"}
_NUMBER = re.compile(r"_U\d+$")
"""The suffix of a kernel's name in a plan: a number that counts from the beginning of the plan, and is ignored."""
MIN_ERROR_FACTOR = 2.0
"""The factor below which two errors against eager count as equal: the order of sums differs from GPU to GPU."""


def find_differences(before: ProgramView, after: ProgramView) -> tuple[Change, ...]:
    """Return the differences between two programs, grouped by kind; empty if there are none.

    Compilation time and memory are not compared, since they vary from run to run.
    """
    found = (Change(title, tuple(rows(before, after))) for title, rows in KINDS.items())
    return tuple(change for change in found if change.rows)


def format_changes(changes: Iterable[Change], max_rows: int = 20) -> str:
    """Format differences as text, with at most ``max_rows`` rows of each kind; empty if there are none."""

    def shorten(change: Change) -> Change:
        left = len(change.rows) - max_rows
        return evolve(change, rows=(*change.rows[:max_rows], Row(f"and {left} more"))) if left > 0 else change

    return "\n".join(str(shorten(change)) for change in changes)


def _nodes_by_name(view: ProgramView) -> dict[str, NodeView]:
    return {node.name: node for node in view.nodes}


def _common_nodes(before: ProgramView, after: ProgramView) -> Iterator[tuple[NodeView, NodeView]]:
    """Yield pairs of nodes that have the same name in both programs."""
    old = _nodes_by_name(before)
    return ((old[node.name], node) for node in after.nodes if node.name in old)


def _changed_values(
    before: Iterable[tuple[str, T]],
    after: Iterable[tuple[str, T]],
    to_text: Callable[[T], str] = str,
    missing: str = "-",
) -> Iterator[Row]:
    """Yield a row for each name whose values in ``before`` and ``after`` differ as text (``missing`` if absent)."""
    old, new = dict(before), dict(after)
    for name in dict.fromkeys([*old, *new]):
        was, now = (to_text(rows[name]) if name in rows else missing for rows in (old, new))
        if was != now:
            yield Row(f"{name}: {was} -> {now}")


def _changed_signature(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    """Yield a row for each input, output and dynamic size that only one of the programs has."""
    for what in ("inputs", "outputs", "sizes"):
        yield from (Row(f"- {line}") for line in getattr(before, what) if line not in getattr(after, what))
        yield from (Row(f"+ {line}") for line in getattr(after, what) if line not in getattr(before, what))


def _moved_nodes(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    """Yield a row for each node that moved between TensorRT and PyTorch, or has another reason to run in PyTorch."""
    for old, new in _common_nodes(before, after):
        if old.place != new.place:
            why = f": {new.reason}" if new.reason else ""
            yield Row(f"{new.name} ({new.target}): {PLACE_NAMES[old.place]} -> {PLACE_NAMES[new.place]}{why}", new.name)
        elif old.reason != new.reason:
            yield Row(f"{new.name} ({new.target}): {old.reason or '-'} -> {new.reason or '-'}", new.name)


def _added_and_removed_nodes(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    old, new = _nodes_by_name(before), _nodes_by_name(after)
    yield from (Row(f"- {node.name}: {node.target}") for node in before.nodes if node.name not in new)
    yield from (Row(f"+ {node.name}: {node.target}", node.name) for node in after.nodes if node.name not in old)


def _changed_nodes(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    """Yield a row for each node of both programs (by name) whose target, converter, values, ``healed`` or ``fusion``
    differs (see `NodeView`)."""
    for old, new in _common_nodes(before, after):
        rows = {
            "target": (old.target, new.target),
            "converter": (old.converter, new.converter),
            "gives": (", ".join(map(str, old.values)), ", ".join(map(str, new.values))),
            "healed": (old.healed, new.healed),
            "quantized": (old.fusion, new.fusion),
        }
        same_place = old.place == new.place
        parts = [f"{k} {was or '-'} -> {now or '-'}" for k, (was, now) in rows.items() if was != now and same_place]
        if parts:
            yield Row(f"{new.name}: {'; '.join(parts)}", new.name)


def _changed_counts(title: str, before: Sequence[str], after: Sequence[str]) -> Iterator[Row]:
    """Compare two lists of names: yield a row for the length if it differs (under ``title``), and for each name whose
    count differs."""
    yield from _changed_values([(title, len(before))], [(title, len(after))])
    yield from _changed_values(Counter(before).items(), Counter(after).items(), missing="0")


def _changed_layers(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    kinds = ([layer.kind for node in view.nodes for layer in node.layers] for view in (before, after))
    return _changed_counts("layers", *kinds)


def _changed_kernels(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    names = [[_NUMBER.sub("", kernel.name) for kernel in view.kernels] for view in (before, after)]
    if any(names):
        yield from _changed_counts("kernels", *names)


def _changed_sizes(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    """Yield rows for differing bytes (of engines, weights, tensors passed between segments) or operator counts."""
    yield from _changed_values(_engine_totals(before), _engine_totals(after))
    for what, title in {"nbytes": "engine", "weights": "weights", "operators": "operators"}.items():
        shown = str if what == "operators" else format_bytes
        old, new = ([(f"{s.name} {title}", n) for s in v.segments if (n := getattr(s, what))] for v in (before, after))
        yield from _changed_numbers(old, new, shown)
    old, new = ([(f"cut {c.source} -> {c.target}", c.nbytes) for c in v.cuts] for v in (before, after))
    yield from _changed_numbers(old, new, format_bytes)


def _engine_totals(view: ProgramView) -> list[tuple[str, str]]:
    """Return the number of engines and their total size, as (name, text) pairs."""
    sizes = [segment.nbytes for segment in view.segments if segment.place == "tensorrt"]
    return [("engines", str(len(sizes))), ("all engines", format_bytes(sum(sizes)))]


def _changed_numbers(
    before: list[tuple[str, int]], after: list[tuple[str, int]], to_text: Callable[[int], str]
) -> Iterator[Row]:
    """Yield a row for each name whose number differs. If ``to_text`` rounds both numbers to the same text, the row
    has all digits of the two numbers, which are bytes."""
    yield from _changed_values(before, after, to_text)
    old, new = dict(before), dict(after)
    for name in old:
        if name in new and old[name] != new[name] and to_text(old[name]) == to_text(new[name]):
            yield Row(f"{name}: {old[name]} -> {new[name]} bytes")


def _changed_times(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    if before.profile is None or after.profile is None:
        return
    for old, new in zip(_times(before.profile), _times(after.profile), strict=True):
        for name in (name for name in new if name in old):
            was, now = old[name], new[name]
            if abs(now - was) > MIN_TIME_CHANGE * max(was, now):
                yield Row(f"{name}: {was:.4g} -> {now:.4g} ms")


def _times(profile: Profile) -> tuple[dict[str, float], dict[str, float]]:
    """Return the milliseconds of a call, of a call with CUDA graphs, and of each segment, by name; and of each node."""
    graph = {"call with CUDA graphs": profile.graph} if profile.graph is not None else {}
    total = {"call": profile.call, **graph, **{s.segment: s.milliseconds for s in profile.segments}}
    return total, {node.node: node.milliseconds for node in profile.nodes}


def _changed_weights(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    """Yield a row if the two programs were saved with different values of weights."""
    old, new = before.weights_digest, after.weights_digest
    if old and new and old != new:
        yield Row(f"their values differ: SHA-256 {old[:12]} -> {new[:12]}")


def _changed_errors(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    """Yield a row for each output and sample whose error against eager differs, or that is verified in only one."""
    old, new = (
        {_row_name(row): row for row in view.agreement.rows} if view.agreement else {} for view in (before, after)
    )
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name), new.get(name)
        if was is None or now is None:
            yield Row(f"{name}: {'verified' if was is None else 'not verified'} now")
        elif was.holds != now.holds or not _is_similar_error(was.error, now.error):
            yield Row(f"{name}: error {was.error:.2g} -> {now.error:.2g}{'' if now.holds else ', beyond its bound'}")


def _row_name(row: OutputAgreement) -> str:
    """Return the name of an agreement's row: its output and sample, and whether it compares the original module."""
    return f"{row.output}, {row.sample}{', the module' * (row.source == 'module')}"


def _is_similar_error(before: float, after: float) -> bool:
    """Return whether two errors against eager are equal, or differ by at most the factor `MIN_ERROR_FACTOR`."""
    low, high = sorted((before, after))
    return high <= MIN_ERROR_FACTOR * low or low == high


KINDS: Mapping[str, Callable[[ProgramView, ProgramView], Iterator[Row]]] = {
    "settings": lambda before, after: _changed_values(before.settings, after.settings, missing="as by default"),
    "versions": lambda before, after: _changed_values(before.versions, after.versions),
    "weights": _changed_weights,
    "inputs and outputs": _changed_signature,
    "where nodes run": _moved_nodes,
    "nodes": _added_and_removed_nodes,
    "what nodes are": _changed_nodes,
    "layers": _changed_layers,
    "kernels": _changed_kernels,
    "sizes": _changed_sizes,
    "times": _changed_times,
    "errors": _changed_errors,
}
"""For each kind of difference, the function that finds differences of this kind."""
