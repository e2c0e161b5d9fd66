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

from pipeline.profiling.matching import stem

BOUND: Final = "spin_kernel"
"""A part of the name of the kernel that marks the start and end of a segment."""
NOTHING: Final = 0.001
"""Milliseconds below which a row of the profiler has no kernel: one with a kernel had 0.003 at least on an H200."""
MOST: Final = 4
"""The most kernels of one row."""
WRONG, ODD, MORE, COPY = 8.0, 4.0, 0.5, 0.3
"""The costs of an assignment: a kernel of another row's name; no kernel, or a kernel for a row that has none; a second
kernel, or a library's for a generated one; a copy."""
_WRITTEN = re.compile(r"_0x[0-9a-f]{16,}")
T = TypeVar("T")
_ELEMENTWISE = re.compile(r"__myl_(?!Fc|Corr)")


@frozen
class Span:
    """A kernel run: its start and duration, in milliseconds."""

    name: str
    start: float
    milliseconds: float


@frozen
class Timed:
    """The times of a segment, in milliseconds: each row's kernels, by name, and the gaps between kernels."""

    rows: tuple[tuple[tuple[str, ...], float], ...]
    between: float


def by_segment(order: Sequence[str], spans: Iterable[Span]) -> Mapping[str, list[list[Span]]]:
    """Return the kernels of each run of each segment, without its first run.

    order: the segments in execution order. spans: all measured kernels, with a marker kernel (`BOUND`) before and after
        each segment. The result is empty if markers are missing.
    """
    found: dict[str, list[list[Span]]] = {name: [] for name in order}
    ordered = sorted(spans, key=lambda span: span.start)
    bounds = [i for i, span in enumerate(ordered) if BOUND in span.name]
    if len(bounds) != 2 * len(order):
        return {}
    for name, first, last in zip(order, bounds[::2], bounds[1::2], strict=True):
        found[name].append(ordered[first + 1 : last])
    return {name: runs[1:] for name, runs in found.items()}


def timed(rows: Sequence[tuple[str, float]], runs: Sequence[Sequence[Span]]) -> Timed | None:
    """Return the median time of each row, from its kernels; None if kernels and rows do not match.

    rows: names and milliseconds from TensorRT's profiler. runs: the kernels of each run.
    """
    if not runs:
        return None
    alike = usual(runs, lambda span: span.name)
    kernels = [(spans[0].name, median(span.milliseconds for span in spans)) for spans in zip(*alike, strict=True)]
    given = aligned(rows, kernels)
    if given is None:
        return None
    own = [[kernel for kernel, row in zip(kernels, given, strict=True) if row == place] for place in range(len(rows))]
    found = tuple((tuple(name for name, _ in each), sum(taken for _, taken in each)) for each in own)
    return Timed(found, median(map(_gap_milliseconds, alike)))


def usual(runs: Sequence[Sequence[T]], name: Callable[[T], str]) -> list[Sequence[T]]:
    """Return the runs whose rows have the most common names."""
    names = [tuple(map(name, run)) for run in runs]
    most = max(names, key=names.count, default=())
    return [run for run, each in zip(runs, names, strict=True) if each == most]


def _gap_milliseconds(run: Sequence[Span]) -> float:
    """Return the milliseconds between kernels, from the first to the last."""
    free, end = 0.0, run[0].start if run else 0.0
    for span in run:
        free += max(span.start - end, 0.0)
        end = max(end, span.start + span.milliseconds)
    return free


def aligned(rows: Sequence[tuple[str, float]], kernels: Sequence[tuple[str, float]]) -> list[int] | None:
    """Assign kernels to rows, both in order, at the lowest cost; return None if a name would not match."""
    width = 48 + abs(len(rows) - len(kernels))
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for i, row in enumerate(rows):
        middle = (i + 1) * len(kernels) // len(rows)
        costs: dict[int, tuple[float, int]] = {}
        for done, (cost, _) in best[i].items():
            for count in range(min(MOST, len(kernels) - done) + 1):
                if abs(done + count - middle) > width:
                    continue
                total = cost + _cost(row, kernels[done : done + count])
                if total < costs.get(done + count, (math.inf, 0))[0]:
                    costs[done + count] = total, count
        best.append(costs)
    if len(kernels) not in best[-1]:
        return None
    found: list[int] = []
    place = len(kernels)
    for i in reversed(range(len(rows))):
        count = best[i + 1][place][1]
        found[:0] = [i] * count
        place -= count
    return None if any(_wrong(rows[row][0], name) for row, (name, _) in zip(found, kernels, strict=True)) else found


def _cost(row: tuple[str, float], kernels: Sequence[tuple[str, float]]) -> float:
    """Return the cost of assigning these kernels to a row."""
    name, milliseconds = row
    if not kernels:
        return ODD if milliseconds > NOTHING else 0.0
    own = sum(taken for _, taken in kernels)
    cost = MORE * (len(kernels) - 1) + ODD * (milliseconds <= NOTHING)
    cost += 0.2 * abs(math.log((own + 0.003) / (milliseconds + NOTHING)))
    return cost + sum(_apart(name, kernel) for kernel, _ in kernels)


def _apart(row: str, kernel: str) -> float:
    if kernel.startswith("Mem"):
        return COPY
    if _wrong(row, kernel):
        return WRONG
    return MORE if _ELEMENTWISE.match(row) and not _WRITTEN.search(kernel) else 0.0


def _wrong(row: str, kernel: str) -> bool:
    """Return whether TensorRT generated this kernel for a different row. A generated kernel has its row's name, with
    ``_vec`` if vectorized; rows with only a number (``__mye3987``) match any kernel."""
    if kernel.startswith("Mem") or not _WRITTEN.search(kernel) or row.startswith("__mye"):
        return False
    return stem(kernel).removesuffix("_vec") != stem(row)
