"""``python -m benchmarks.stages``: what compiling costs apart from torch.export and TensorRT, in time and in memory."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

import pipeline
from benchmarks.environment import save
from benchmarks.memory import peak
from benchmarks.workloads import MODELS, chain
from examples.models import full

Clock: TypeAlias = Callable[[], float]

OWN = ("decompose", "improve", "validate", "partition", "avoid_faults", "convert", "refit_map")
"""The stages that are ours alone: the others are torch.export's time (capture) or TensorRT's (build, load)."""

RUNS = 5
CHAINS = (100, 300, 1000, 3000)
FIXED = {"convolutions": "small resnet50", "products": "small bert"}
TARGETS = {"seconds": 1.0, "growth": 1.5, "memory": 2.0}


def seconds(program: pipeline.Program, clock: Clock = time.perf_counter, *, build: bool = True) -> dict[str, float]:
    """The seconds that each stage takes for a captured program, by a clock of one's choice."""
    started: dict[str, float] = {}
    taken: dict[str, float] = {}

    def note(event: pipeline.Event) -> None:
        if event.kind == "started":
            started[event.stage] = clock()
        elif event.kind == "finished":
            taken[event.stage] = clock() - started[event.stage]

    compile = pipeline.default() if build else pipeline.default().until("convert")
    gc.collect()
    compile.observed_by(note)(program)
    return taken


def own(taken: dict[str, float]) -> float:
    """The seconds of our own stages."""
    return sum(taken.get(name, 0.0) for name in OWN)


def model_time() -> dict[str, Any]:
    """Our own stages for ResNet-50: the first compilation of this process, and the median of those after it.

    They run in one thread. Processor time is what a clock shows on an idle machine; wall time is given beside it.
    """
    case = full("resnet50")
    program = pipeline.capture(case.model, (), case.kwargs, case.dynamic_shapes)
    first, *rest = (seconds(program, time.process_time) for _ in range(RUNS + 1))
    wall = [seconds(program) for _ in range(RUNS)]
    return {
        "model": "ResNet-50, float32, batch 1..8",
        "nodes": sum(node.op == "call_function" for node in program.graph.nodes),
        "first_seconds": round(own(first), 3),
        "median_seconds": round(statistics.median(map(own, rest)), 3),
        "median_wall_seconds": round(statistics.median(map(own, wall)), 3),
        "median_seconds_by_stage": {name: round(statistics.median(run[name] for run in rest), 4) for name in OWN},
        "build_wall_seconds": round(statistics.median(run["build"] for run in wall), 2),
        "target_seconds": TARGETS["seconds"],
    }


def growth() -> dict[str, Any]:
    """Cost per node on chains, in processor time (the best of several runs), and how much dearer than on the shortest.

    The chains take turns, so that what else the machine does meets all of them.
    """
    programs = {nodes: pipeline.capture(chain(nodes)) for nodes in CHAINS}
    runs = [{n: own(seconds(p, time.process_time, build=False)) for n, p in programs.items()} for _ in range(RUNS + 1)]
    rows = []
    for nodes in CHAINS:
        best = min(run[nodes] for run in runs[1:])
        rows.append({"nodes": nodes, "seconds": round(best, 4), "milliseconds_per_node": round(1e3 * best / nodes, 4)})
    each = [row["milliseconds_per_node"] for row in rows]
    return {"chains": rows, "growth": round(max(each[1:]) / each[0], 2), "target_growth": TARGETS["growth"]}


def memory() -> list[dict[str, Any]]:
    """Peak memory of each model above its baseline, and apart from it what TensorRT takes for hardly any weights.

    That fixed share is measured with a narrow ResNet-50 of 1.5 MB for convolutions, and else with a narrow BERT.
    """
    fixed = {kind: peak(name)["peak_above_baseline_bytes"] for kind, name in FIXED.items()}
    rows = []
    for name in MODELS:
        row = peak(name)
        share = fixed["convolutions" if "ResNet" in name else "products"]
        rest = row["peak_above_baseline_bytes"] - share
        rows.append({**row, "fixed_bytes": share, "rest_over_weights": round(rest / row["weights_bytes"], 2)})
    return rows


def missed(result: dict[str, Any]) -> list[str]:
    """The targets that were missed, in words."""
    time, rise = result["time"], result["growth"]
    worst = max(time["first_seconds"], time["median_seconds"])
    faults = [f"own stages take {worst} s for {time['model']}"] if worst > TARGETS["seconds"] else []
    faults += [f"cost per node grows {rise['growth']}-fold"] if rise["growth"] > TARGETS["growth"] else []
    return faults + [
        f"peak memory of {row['model']} is {row['peak_over_weights']} times its weights"
        for row in result["memory"]
        if row["peak_over_weights"] > TARGETS["memory"]
    ]


def main() -> int:
    """Measures, saves and prints; 1 if a target was missed."""
    torch.set_num_threads(1)
    result = {"time": model_time(), "growth": growth(), "memory": memory()}
    path = save("stages", result)
    first, later = (result["time"][key] for key in ("first_seconds", "median_seconds"))
    print(f"own stages for ResNet-50: {first} s of processor time at first, then {later} s")
    print(f"cost per node: {result['growth']['growth']}-fold from {CHAINS[0]} to {CHAINS[-1]} nodes")
    for row in result["memory"]:
        fixed = (
            f"{row['fixed_bytes'] / 1e6:.0f} MB for any such network and {row['rest_over_weights']} times the weights"
        )
        print(f"peak memory of {row['model']}: {row['peak_over_weights']} times its weights ({fixed})")
        print(f"  anonymous {row['anonymous_over_weights']}, left at the end {row['left_over_weights']}")
    print(f"written to {path}")
    for fault in missed(result):
        print(f"target missed: {fault}")
    return 1 if missed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
