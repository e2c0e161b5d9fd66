"""Match the kernels that CUPTI timed with the rows of TensorRT's profiler, by order and by name.

TensorRT's profiler names each row after its layers, but its measurement adds microseconds. CUPTI, via torch's
profiler, times every kernel without this overhead, but does not know the layers. Both report an engine in the same
order.
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
"""A part of the name of the kernel that is launched before and after each measured segment, to mark its kernels."""
MIN_MILLISECONDS: Final = 0.001
"""A row of TensorRT's profiler below this time has no kernel; on an H200, rows with one took 0.003 at least."""
MAX_KERNELS: Final = 4
"""The maximum number of kernels that one profiler row can have."""
WRONG, ODD, MORE, COPY = 8.0, 4.0, 0.5, 0.3
"""Costs of assigning kernels to profiler rows: WRONG for a kernel generated for another row; ODD for a missing or an
unexpected kernel; MORE for a second kernel, or a library's in place of a generated one; COPY for a copy."""
_GENERATED = re.compile(r"_0x[0-9a-f]{16,}")
T = TypeVar("T")
_ELEMENTWISE = re.compile(r"__myl_(?!Fc|Corr)")


@frozen
class Span:
    """One run of a kernel on the GPU: its name, and its start and duration in milliseconds."""

    name: str
    start: float
    milliseconds: float


@frozen
class RowTimes:
    """The GPU milliseconds of a segment. ``rows``: each profiler row's kernel names and time. ``between``: the gaps
    between kernels."""

    rows: tuple[tuple[tuple[str, ...], float], ...]
    between: float


def kernels_by_segment(segment_names: Sequence[str], spans: Iterable[Span]) -> Mapping[str, list[list[Span]]]:
    """Return the kernels of each segment, by its name: a list for each run, except the first (a warm-up).

    segment_names: in execution order, a name for each run. spans: all measured kernels, with a marker kernel (`MARKER`)
        before and after each run of a segment. The result is empty if markers are missing.
    """
    found: dict[str, list[list[Span]]] = {name: [] for name in segment_names}
    ordered = sorted(spans, key=lambda span: span.start)
    bounds = [i for i, span in enumerate(ordered) if MARKER in span.name]
    if len(bounds) != 2 * len(segment_names):
        return {}
    for name, first, last in zip(segment_names, bounds[::2], bounds[1::2], strict=True):
        found[name].append(ordered[first + 1 : last])
    return {name: runs[1:] for name, runs in found.items()}


def time_rows(rows: Sequence[tuple[str, float]], runs: Sequence[Sequence[Span]]) -> RowTimes | None:
    """Return the median time of each profiler row, from the kernels that it ran; None if kernels and rows do not match.

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
    found = ((tuple(name for name, _ in own), sum(taken for _, taken in own)) for own in by_row)
    return RowTimes(tuple(found), median(map(_gap_milliseconds, alike)))


def most_common_runs(runs: Sequence[Sequence[T]], name_of: Callable[[T], str]) -> list[Sequence[T]]:
    """Return those runs whose sequence of names is the most common one."""
    names = [tuple(map(name_of, run)) for run in runs]
    most = max(names, key=names.count, default=())
    return [run for run, each in zip(runs, names, strict=True) if each == most]


def _gap_milliseconds(run: Sequence[Span]) -> float:
    """Return the milliseconds between the first and the last kernel in which the GPU ran no kernel."""
    free, end = 0.0, run[0].start if run else 0.0
    for span in run:
        free += max(span.start - end, 0.0)
        end = max(end, span.start + span.milliseconds)
    return free


def assign_kernels(rows: Sequence[tuple[str, float]], kernels: Sequence[tuple[str, float]]) -> list[int] | None:
    """Assign kernels to profiler rows, both in execution order, such that their names and times match best: return each
    kernel's row index, or None if a kernel's name contradicts its row. ``rows``, ``kernels``: names and
    milliseconds."""
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
    pairs = zip(assigned, kernels, strict=True)
    return None if any(_is_of_other_row(rows[row][0], name) for row, (name, _) in pairs) else assigned


def _assignment_cost(row: tuple[str, float], kernels: Sequence[tuple[str, float]]) -> float:
    """Return how badly these kernels match one profiler row in number, times and names: a cost, lower if they match."""
    name, milliseconds = row
    if not kernels:
        return ODD if milliseconds > MIN_MILLISECONDS else 0.0
    own = sum(taken for _, taken in kernels)
    cost = MORE * (len(kernels) - 1) + ODD * (milliseconds <= MIN_MILLISECONDS)
    cost += 0.2 * abs(math.log((own + 0.003) / (milliseconds + MIN_MILLISECONDS)))
    return cost + sum(_name_mismatch_cost(name, kernel) for kernel, _ in kernels)


def _name_mismatch_cost(row_name: str, kernel_name: str) -> float:
    """Return a cost: `WRONG` if the kernel belongs to another profiler row, `MORE` if a library's kernel is compared
    with an elementwise row, `COPY` for a memory copy, else 0."""
    if kernel_name.startswith("Mem"):
        return COPY
    if _is_of_other_row(row_name, kernel_name):
        return WRONG
    return MORE if _ELEMENTWISE.match(row_name) and not _GENERATED.search(kernel_name) else 0.0


def _is_of_other_row(row_name: str, kernel_name: str) -> bool:
    """Return whether TensorRT generated this kernel for another profiler row. A generated kernel has its row's name,
    with ``_vec`` if it is vectorized; rows whose name is only a number (``__mye3987``) match any kernel."""
    if kernel_name.startswith("Mem") or not _GENERATED.search(kernel_name) or row_name.startswith("__mye"):
        return False
    return kernel_stem(kernel_name).removesuffix("_vec") != kernel_stem(row_name)
