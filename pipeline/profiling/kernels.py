"""Match kernels that CUPTI timed to rows of TensorRT's profiler, by order and by name.

TensorRT's profiler names each row, but its measurement adds microseconds. CUPTI, via torch's profiler, measures every
kernel without this overhead, but does not know its layer. Both report an engine in the same order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Final, TypeVar

from attrs import frozen

from pipeline.profiling.matching import kernel_stem

MARKER: Final = "spin_kernel"
"""A part of the name of the kernel that marks the start and end of a segment."""
MIN_MILLISECONDS: Final = 0.001
"""Milliseconds below which a row of the profiler has no kernel: one with a kernel had 0.003 at least on an H200."""
MAX_KERNELS: Final = 4
"""The most kernels of one row."""
WRONG, ODD, MORE, COPY = 8.0, 4.0, 0.5, 0.3
"""The costs of an assignment: a kernel of another row's name; no kernel, or a kernel for a row that has none; a second
kernel, or a library's for a generated one; a copy."""
_GENERATED = re.compile(r"_0x[0-9a-f]{16,}")
T = TypeVar("T")
_ELEMENTWISE = re.compile(r"__myl_(?!Fc|Corr)")


@frozen
class Span:
    """A kernel run: its start and duration, in milliseconds."""

    name: str
    start: float
    milliseconds: float


@frozen
class RowTimes:
    """The times of a segment, in milliseconds: each row's kernels, by name, and the gaps between kernels."""

    rows: tuple[tuple[tuple[str, ...], float], ...]
    between: float


def kernels_by_segment(order: Sequence[str], spans: Iterable[Span]) -> Mapping[str, list[list[Span]]]:
    """Return the kernels of each run of each segment, without its first run.

    order: the segments in execution order. spans: all measured kernels, with a marker kernel (`MARKER`) before and
        after each segment. The result is empty if markers are missing.
    """
    found: dict[str, list[list[Span]]] = {name: [] for name in order}
    ordered = sorted(spans, key=lambda span: span.start)
    bounds = [i for i, span in enumerate(ordered) if MARKER in span.name]
    if len(bounds) != 2 * len(order):
        return {}
    for name, first, last in zip(order, bounds[::2], bounds[1::2], strict=True):
        found[name].append(ordered[first + 1 : last])
    return {name: runs[1:] for name, runs in found.items()}


def time_rows(rows: Sequence[tuple[str, float]], runs: Sequence[Sequence[Span]]) -> RowTimes | None:
    """Return the median time of each row, from its kernels; None if kernels and rows do not match.

    rows: names and milliseconds from TensorRT's profiler. runs: the kernels of each run.
    """
    if not runs:
        return None
    alike = most_common_runs(runs, lambda span: span.name)
    kernels = [(spans[0].name, median(span.milliseconds for span in spans)) for spans in zip(*alike, strict=True)]
    assigned = assign_kernels(rows, kernels)
    if assigned is None:
        return None
    by_row = [[kernel for kernel, row in zip(kernels, assigned, strict=True) if row == i] for i in range(len(rows))]
    found = tuple(
        (tuple(name for name, _ in kernels_of_row), sum(taken for _, taken in kernels_of_row))
        for kernels_of_row in by_row
    )
    return RowTimes(found, median(map(_gap_milliseconds, alike)))


def most_common_runs(runs: Sequence[Sequence[T]], name_of: Callable[[T], str]) -> list[Sequence[T]]:
    """Return the runs whose rows have the most common names."""
    names = [tuple(map(name_of, run)) for run in runs]
    most = max(names, key=names.count, default=())
    return [run for run, each in zip(runs, names, strict=True) if each == most]


def _gap_milliseconds(run: Sequence[Span]) -> float:
    """Return the milliseconds between kernels, from the first to the last."""
    free, end = 0.0, run[0].start if run else 0.0
    for span in run:
        free += max(span.start - end, 0.0)
        end = max(end, span.start + span.milliseconds)
    return free


def assign_kernels(rows: Sequence[tuple[str, float]], kernels: Sequence[tuple[str, float]]) -> list[int] | None:
    """Assign kernels to rows, both in order, at the lowest cost; return None if a name would not match."""
    width = 48 + abs(len(rows) - len(kernels))
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for i, row in enumerate(rows):
        middle = (i + 1) * len(kernels) // len(rows)
        costs: dict[int, tuple[float, int]] = {}
        for done, (cost, _) in best[i].items():
            for count in range(min(MAX_KERNELS, len(kernels) - done) + 1):
                if abs(done + count - middle) > width:
                    continue
                total = cost + _assignment_cost(row, kernels[done : done + count])
                if total < costs.get(done + count, (math.inf, 0))[0]:
                    costs[done + count] = total, count
        best.append(costs)
    if len(kernels) not in best[-1]:
        return None
    assigned: list[int] = []
    position = len(kernels)
    for i in reversed(range(len(rows))):
        count = best[i + 1][position][1]
        assigned[:0] = [i] * count
        position -= count
    return (
        None
        if any(_is_of_other_row(rows[row][0], name) for row, (name, _) in zip(assigned, kernels, strict=True))
        else assigned
    )


def _assignment_cost(row: tuple[str, float], kernels: Sequence[tuple[str, float]]) -> float:
    """Return the cost of assigning these kernels to a row."""
    name, milliseconds = row
    if not kernels:
        return ODD if milliseconds > MIN_MILLISECONDS else 0.0
    own = sum(taken for _, taken in kernels)
    cost = MORE * (len(kernels) - 1) + ODD * (milliseconds <= MIN_MILLISECONDS)
    cost += 0.2 * abs(math.log((own + 0.003) / (milliseconds + MIN_MILLISECONDS)))
    return cost + sum(_name_cost(name, kernel) for kernel, _ in kernels)


def _name_cost(row: str, kernel: str) -> float:
    if kernel.startswith("Mem"):
        return COPY
    if _is_of_other_row(row, kernel):
        return WRONG
    return MORE if _ELEMENTWISE.match(row) and not _GENERATED.search(kernel) else 0.0


def _is_of_other_row(row: str, kernel: str) -> bool:
    """Return whether TensorRT generated this kernel for a different row. A generated kernel has its row's name, with
    ``_vec`` if vectorized; rows with only a number (``__mye3987``) match any kernel."""
    if kernel.startswith("Mem") or not _GENERATED.search(kernel) or row.startswith("__mye"):
        return False
    return kernel_stem(kernel).removesuffix("_vec") != kernel_stem(row)
