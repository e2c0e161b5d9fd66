"""Differences between two programs: operators that moved to or from PyTorch, layers, kernels, sizes, times, errors."""

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
NOISE = 0.1
"""The relative difference below which times count as equal: two runs of one program differ by as much."""
NAMES = {"tensorrt": "TensorRT", "pytorch": "PyTorch", "host": "the host"}
_NUMBER = re.compile(r"_U\d+$")
"""The suffix that a plan adds to a kernel's name: a number that counts from the plan's beginning."""
ERRORS = 2.0
"""The factor below which errors against eager count as equal: the order of sums differs from GPU to GPU."""


def differences(before: ProgramView, after: ProgramView) -> tuple[Change, ...]:
    """Return the differences between two programs, by kind of difference; empty if they are the same.

    Compilation time and memory are not compared, since they vary from run to run.
    """
    found = (Change(title, tuple(rows(before, after))) for title, rows in KINDS.items())
    return tuple(change for change in found if change.rows)


def printed(changes: Iterable[Change], most: int = 20) -> str:
    """Return the differences as text, at most ``most`` of each kind; empty if there are none."""

    def first(change: Change) -> Change:
        left = len(change.rows) - most
        return evolve(change, rows=(*change.rows[:most], Row(f"and {left} more"))) if left > 0 else change

    return "\n".join(str(first(change)) for change in changes)


def _nodes(view: ProgramView) -> dict[str, NodeView]:
    return {node.name: node for node in view.nodes}


def _both(before: ProgramView, after: ProgramView) -> Iterator[tuple[NodeView, NodeView]]:
    """Yield the nodes that both programs have, by name."""
    old = _nodes(before)
    return ((old[node.name], node) for node in after.nodes if node.name in old)


def _pairs(
    before: Iterable[tuple[str, T]], after: Iterable[tuple[str, T]], shown: Callable[[T], str] = str, missing: str = "-"
) -> Iterator[Row]:
    """Yield the differing, missing and new rows, by name."""
    old, new = dict(before), dict(after)
    for name in dict.fromkeys([*old, *new]):
        was, now = (shown(rows[name]) if name in rows else missing for rows in (old, new))
        if was != now:
            yield Row(f"{name}: {was} -> {now}")


def _settings(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    """Yield the settings that differ; views contain only settings that differ from the default."""
    return _pairs(before.settings, after.settings, missing="as by default")


def _versions(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    return _pairs(before.versions, after.versions)


def _signature(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    for what in ("inputs", "outputs", "sizes"):
        yield from (Row(f"- {line}") for line in getattr(before, what) if line not in getattr(after, what))
        yield from (Row(f"+ {line}") for line in getattr(after, what) if line not in getattr(before, what))


def _moved(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    for old, new in _both(before, after):
        if old.place != new.place:
            why = f": {new.reason}" if new.reason else ""
            yield Row(f"{new.name} ({new.target}): {NAMES[old.place]} -> {NAMES[new.place]}{why}", new.name)
        elif old.reason != new.reason:
            yield Row(f"{new.name} ({new.target}): {old.reason or '-'} -> {new.reason or '-'}", new.name)


def _appeared(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    old, new = _nodes(before), _nodes(after)
    yield from (Row(f"- {node.name}: {node.target}") for node in before.nodes if node.name not in new)
    yield from (Row(f"+ {node.name}: {node.target}", node.name) for node in after.nodes if node.name not in old)


def _operators(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    """Yield the differences between nodes of the same name: target, converter, values, healing, fusion."""
    for old, new in _both(before, after):
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


def _counted(what: str, before: Sequence[str], after: Sequence[str]) -> Iterator[Row]:
    """Yield the counts of ``what`` that differ, in total and by name."""
    yield from _pairs([(what, len(before))], [(what, len(after))])
    yield from _pairs(Counter(before).items(), Counter(after).items(), missing="0")


def _layers(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    kinds = ([layer.kind for node in view.nodes for layer in node.layers] for view in (before, after))
    return _counted("layers", *kinds)


def _kernels(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    names = [[_NUMBER.sub("", kernel.name) for kernel in view.kernels] for view in (before, after)]
    if any(names):
        yield from _counted("kernels", *names)


def _sizes(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    yield from _pairs(_engines(before), _engines(after))
    for what, title in {"nbytes": "engine", "weights": "weights", "operators": "operators"}.items():
        shown = str if what == "operators" else format_bytes
        old, new = ([(f"{s.name} {title}", n) for s in v.segments if (n := getattr(s, what))] for v in (before, after))
        yield from _exact(old, new, shown)
    old, new = ([(f"cut {c.source} -> {c.target}", c.nbytes) for c in v.cuts] for v in (before, after))
    yield from _exact(old, new, format_bytes)


def _engines(view: ProgramView) -> list[tuple[str, str]]:
    """Return the number of engines, and their total size in bytes."""
    sizes = [segment.nbytes for segment in view.segments if segment.place == "tensorrt"]
    return [("engines", str(len(sizes))), ("all engines", format_bytes(sum(sizes)))]


def _exact(before: list[tuple[str, int]], after: list[tuple[str, int]], shown: Callable[[int], str]) -> Iterator[Row]:
    """Yield the sizes that differ, in bytes if their texts are equal."""
    yield from _pairs(before, after, shown)
    old, new = dict(before), dict(after)
    for name in old:
        if name in new and old[name] != new[name] and shown(old[name]) == shown(new[name]):
            yield Row(f"{name}: {old[name]} -> {new[name]} bytes")


def _times(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    if before.profile is None or after.profile is None:
        return
    yield from _slower(_totals(before.profile), _totals(after.profile))
    yield from _slower(*({n.node: n.milliseconds for n in p.nodes} for p in (before.profile, after.profile)))


def _totals(profile: Profile) -> dict[str, float]:
    graph = {"call with CUDA graphs": profile.graph} if profile.graph is not None else {}
    return {"call": profile.call, **graph, **{s.segment: s.milliseconds for s in profile.segments}}


def _weights(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    """Yield a row if the weights of two files have different values."""
    old, new = before.weights_digest, after.weights_digest
    if old and new and old != new:
        yield Row(f"the numbers differ: SHA-256 {old[:12]} -> {new[:12]}")


def _slower(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[Row]:
    for name in (name for name in after if name in before):
        was, now = before[name], after[name]
        if abs(now - was) > NOISE * max(was, now):
            yield Row(f"{name}: {was:.4g} -> {now:.4g} ms")


def _errors(before: ProgramView, after: ProgramView) -> Iterator[Row]:
    old, new = ({_name(row): row for row in view.agreement.rows} if view.agreement else {} for view in (before, after))
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name), new.get(name)
        if was is None or now is None:
            yield Row(f"{name}: {'verified' if was is None else 'not verified'} now")
        elif was.holds != now.holds or not _alike(was.error, now.error):
            yield Row(f"{name}: error {was.error:.2g} -> {now.error:.2g}{'' if now.holds else ', beyond its bound'}")


def _name(row: OutputAgreement) -> str:
    return f"{row.output}, {row.sample}{', the module' * (row.source == 'module')}"


def _alike(was: float, now: float) -> bool:
    low, high = sorted((was, now))
    return high <= ERRORS * low or low == high


KINDS: Mapping[str, Callable[[ProgramView, ProgramView], Iterator[Row]]] = {
    "settings": _settings,
    "versions": _versions,
    "weights": _weights,
    "inputs and outputs": _signature,
    "where nodes run": _moved,
    "nodes": _appeared,
    "what nodes are": _operators,
    "layers": _layers,
    "kernels": _kernels,
    "sizes": _sizes,
    "times": _times,
    "errors": _errors,
}
"""Each kind of difference, and the function that finds it."""
