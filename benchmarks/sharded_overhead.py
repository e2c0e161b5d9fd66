"""``torchrun --nproc-per-node 2 -m benchmarks.sharded_overhead``: what a sharded step takes beyond its parts.

The parts are the program's engines, each called by itself with the inputs that it has in a step, and its collectives,
called one after the other on tensors of the same sizes. What remains is waiting for the other ranks, and the host's
work between the parts, which is measured as well. Times are medians of the slowest rank, in the quickest of eight
rounds: by the host's clock on CPUs, by the GPU's on GPUs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from attrs import define, evolve, field
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.environment import RESULTS
from benchmarks.sharded import (
    GRAPHS,
    MODELS,
    PLAIN,
    Row,
    cuda,
    measure,
    milliseconds,
    model_of,
    ours,
    say,
    step_of,
)
from pipeline.aten.collectives import SPACE
from pipeline.compiled import Compiled
from pipeline.program import Segment
from pipeline.runtime.call_plan import RunOptions, SegmentRunner

Call: TypeAlias = Callable[[], object]


class Collectives(TorchDispatchMode):
    """A mode that notes the collectives that are called, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a call of a collective, and call it."""
        if function.namespace == SPACE and "wait" not in function.name():
            self.found.append((function, args))
        return function(*args, **(kwargs or {}))


@define
class Segments:
    """The segments of a program's last step: each engine as a call of its own, and the host's seconds in all."""

    engines: dict[str, Call] = field(factory=dict)
    seconds: float = 0.0

    def noted(self, segment: Segment, run: SegmentRunner) -> SegmentRunner:
        """Note the calls of a segment."""

        def call(given: list[Any], turn: RunOptions) -> Any:
            if segment.kind == "engine":
                self.engines[segment.name] = lambda: run(given, here(turn))
            began = time.perf_counter()
            try:
                return run(given, turn)
            finally:
                self.seconds += time.perf_counter() - began

        return call

    def between(self, step: Call) -> float:
        """The host's milliseconds outside of segments, in the quickest of 50 steps."""
        found = []
        for _ in range(50):
            self.seconds, began = 0.0, time.perf_counter()
            step()
            found.append(1e3 * (time.perf_counter() - began - self.seconds))
        return round(min(found), 4)


def called_alone(segments: Segments, step: Call) -> tuple[Call, Call, int, int]:
    """The engines of a step in a row, its collectives in a row, and how many there are of each."""
    with Collectives() as mode:
        step()
    engines = list(segments.engines.values())

    def in_a_row() -> None:
        for call in engines:
            call()

    def collectives() -> None:
        for function, args in mode.found:
            torch.ops._c10d_functional.wait_tensor(function(*args))

    return in_a_row, collectives, len(engines), len(mode.found)


def here(turn: RunOptions) -> RunOptions:
    """The same arguments on the current stream."""
    return turn if turn.stream is None else evolve(turn, stream=torch.cuda.current_stream())


def in_graph(call: Call) -> Call:
    """A CUDA graph of a call."""
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph.replay


def row_of(compiled: Compiled, batch: int, options: Any, tokens: int, graphs: bool) -> Row:
    """Measure a step of so many tokens, and its parts."""
    module, segments = compiled.module("tensorrt" if cuda() else "reference", cuda_graphs=graphs), Segments()
    module.instrument(segments.noted)
    own = step_of(module, batch, options.prompt + 64)

    def step() -> object:
        return own(tokens)

    engines, collectives, *counts = called_alone(segments, step)
    if graphs:
        engines, collectives = in_graph(engines), in_graph(collectives)
    calls = {"step_ms": step, "engines_ms": engines, "collectives_ms": collectives}
    rounds = [{name: milliseconds(call, 10) for name, call in calls.items()} for _ in range(8)]
    row: Row = {name: min(each[name] for each in rounds) for name in calls}
    row |= dict(zip(("engines", "collectives"), counts, strict=True))
    row["overhead_ms"] = round(row["step_ms"] - row["engines_ms"] - row["collectives_ms"], 4)
    return row if graphs else {**row, "between_ms": segments.between(step)}


def rows(options: Any) -> Iterator[Row]:
    """A row for each model, batch, number of tokens and method; on a stream that a graph can capture."""
    with torch.cuda.stream(torch.cuda.Stream()) if cuda() else nullcontext():
        yield from _rows(options)


def _rows(options: Any) -> Iterator[Row]:
    for name in options.models:
        model = model_of(name, options.layers, 2 * options.prompt, sharded=True)
        for batch in options.batches:
            compiled = ours(model, batch, options.prompt + 64, options.prompt, PLAIN)[0].compiled["decoder"]
            for tokens in (1, options.prompt):
                for method in (PLAIN, GRAPHS) if cuda() else (PLAIN,):
                    say(name, batch, tokens, method)
                    subject = {"model": name, "layers": options.layers, "batch": batch, "tokens": tokens}
                    subject |= {"method": method, "ranks": dist.get_world_size()}
                    yield {**subject, **row_of(compiled, batch, options, tokens, method == GRAPHS)}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the rows to the results, each when it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["8B"], choices=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    parser.add_argument("--layers", type=int, help="so many layers instead of the model's own")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of a collective")
    parser.add_argument("--out", type=Path, default=RESULTS / "sharded.jsonl")
    return measure(parser.parse_args(argv), rows)


if __name__ == "__main__":
    sys.exit(main())
