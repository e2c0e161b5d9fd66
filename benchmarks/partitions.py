"""``python -m benchmarks.partitions``: how long cutting a program takes, and what of ResNet-50 and BERT it leaves right
when engines refuse a tenth of the operators."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import pipeline
from benchmarks.environment import save
from benchmarks.workloads import RefuseAtRandom, blocks
from examples.models import Case, full
from pipeline.compiled import Compiled
from pipeline.program import Built, Converted, Partitioned, Validated, is_operator
from pipeline.stages import avoid_faults, convert, refit_map
from pipeline.stages.partition import Partitioner, by_submodule, partition

NODES = (1000, 3000, 10000)
SHARES = (0.0, 0.1)
SEEDS = (0, 1, 2)
RUNS = 5
PARTITIONERS: dict[str, Partitioner] = {"default": partition, "by_submodule(3)": by_submodule(3)}
TARGETS = {"seconds": 5.0, "growth": 1.5, "error": 1e-3}
"""Seconds for 10,000 operators; how much dearer an operator may be than in the smallest program; relative error."""


def validated(*model: Any) -> Validated:
    """A program as partitioners get it."""
    record: Validated = pipeline.default().until("validate")(pipeline.capture(*model))
    return record


def validated_case(case: Case) -> Validated:
    """A model as partitioners get it."""
    return validated(case.model, (), case.kwargs, case.dynamic_shapes)


def seconds(partitioner: Partitioner, given: Validated, clock: Callable[[], float] = time.process_time) -> float:
    """The least of several runs."""
    gc.collect()
    times = []
    for _ in range(RUNS):
        started = clock()
        partitioner(given)
        times.append(clock() - started)
    return min(times)


def cutting(nodes: Sequence[int] = NODES) -> list[dict[str, Any]]:
    """For each partitioner and share of refused operators: seconds by the number of operators, and their growth."""
    programs = {n: validated(blocks(n)) for n in nodes}
    return [
        _row(name, partitioner, share, {n: RefuseAtRandom(share)(p) for n, p in programs.items()})
        for name, partitioner in PARTITIONERS.items()
        for share in SHARES
    ]


def _row(name: str, partitioner: Partitioner, share: float, programs: dict[int, Validated]) -> dict[str, Any]:
    taken = {n: seconds(partitioner, p) for n, p in programs.items()}
    least, most = min(taken), max(taken)
    return {
        "partitioner": name,
        "refused": share,
        "seconds": {str(n): round(t, 3) for n, t in taken.items()},
        "segments": len(partitioner(programs[most]).segments),
        "growth": round(taken[most] / most / (taken[least] / least), 2),
    }


@pipeline.stage
def unbuilt(converted: Converted) -> Built:
    """In the place of ``build``: no engines, so the reference executor runs."""
    c = converted
    return Built(c.partitioned, c.networks, (), c.recipes, c.literals, c.computed)


def refusing(case: Case, given: Validated, seed: int, partitioner: Partitioner = partition) -> dict[str, Any]:
    """A model of which engines refuse a tenth of the operators: its segments, and its error on the reference executor,
    relative to the largest output."""
    compile = (
        pipeline.Pipeline() | RefuseAtRandom(0.1, seed) | partitioner | avoid_faults | convert | unbuilt | refit_map
    )
    compiled: Compiled = compile(given)
    with torch.no_grad():
        theirs, ours = case.model(**case.kwargs), compiled.module("reference")(**case.kwargs)
    segments = compiled.partitioned.segments
    return {
        "model": case.name,
        "seed": seed,
        "engines": len(compiled.partitioned.engine_segments),
        "segments": len(segments),
        "smallest_engine": min(_own_operators(compiled.partitioned), default=0),
        "min_block_size": compiled.settings.min_block_size,
        "operators_in_engines": len(compiled.coverage.converted),
        "operators": compiled.coverage.total,
        "bytes_crossing": sum(cut.nbytes for cut in compiled.partitioned.cuts),
        "relative_error": max(_errors(ours, theirs)),
    }


def _own_operators(partitioned: Partitioned) -> Iterator[int]:
    """How many operators each engine has that are in no other segment."""
    places = Counter(name for segment in partitioned.segments for name in segment.nodes)
    operators = {n.name for n in partitioned.program.graph.nodes if is_operator(n) and places[n.name] == 1}
    return (len(operators.intersection(s.nodes)) for s in partitioned.engine_segments)


def _errors(ours: Any, theirs: Any) -> Iterator[float]:
    for a, b in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        yield float((a - b).abs().max() / b.abs().max())


def missed(result: dict[str, Any]) -> Iterator[str]:
    """The targets that were missed, in words."""
    for row in result["cutting"]:
        what = f"{row['partitioner']} with {row['refused']:.0%} refused"
        if max(row["seconds"].values()) > TARGETS["seconds"]:
            yield f"{what} takes {max(row['seconds'].values())} s"
        if row["growth"] > TARGETS["growth"]:
            yield f"{what} grows {row['growth']}-fold"
    for row in result["refusing"]:
        if row["relative_error"] > TARGETS["error"] or row["smallest_engine"] < row["min_block_size"]:
            yield f"{row['model']}, seed {row['seed']}: {row}"


def main() -> int:
    """Measures, saves and prints; 1 if a target was missed."""
    torch.set_num_threads(1)
    cases = {case.name: (case, validated_case(case)) for case in map(full, ("resnet50", "bert"))}
    rows = [refusing(*given, seed) for given in cases.values() for seed in SEEDS]
    result = {"cutting": cutting(), "refusing": rows}
    for row in (*result["cutting"], *result["refusing"]):
        print(row)
    print(f"written to {save('partitions', result)}")
    for fault in (faults := list(missed(result))):
        print(f"target missed: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
