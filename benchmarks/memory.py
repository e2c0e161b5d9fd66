"""Peak memory of a compilation, seen from outside: ``python -m benchmarks.memory MODEL`` prints what it measured.

The compilation runs in a process of its own; this one reads every 5 ms what it and its children have in memory: all
of it, and apart what is anonymous, which the system cannot drop. The baseline is what it has when the model is captured
and free memory was given back.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch

from pipeline.compose.resident import ResidentMemory, Sampler, process_tree_memory

INTERVAL = 0.005


def peak(model: str) -> dict[str, Any]:
    """Peak above the baseline for a model of `workloads.case`, in bytes and in multiples of the weights', by stage.

    ``left_over_weights`` is what is still there above the baseline at the end, the plan's file apart.
    """
    command = [sys.executable, "-m", "benchmarks.memory", model]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        weights = json.loads(child.stdout.readline())["weights"]
        baseline = process_tree_memory(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        stages = dict(sampled(child.pid, (json.loads(line)["stage"] for line in child.stdout)))
    if child.returncode:
        raise RuntimeError(f"the compilation of {model} ended with code {child.returncode}")
    left = stages.pop("")
    return {"model": model, "weights_bytes": weights, **_summary(stages, left, baseline, weights)}


def sampled(pid: int, stages: Iterator[str]) -> Iterator[tuple[str, Sampler]]:
    """What a process has in each stage, which it says when it begins; the last is called nothing."""
    stage = next(stages, None)
    while stage is not None:
        with Sampler(pid, INTERVAL) as sampler:
            following = next(stages, None) if stage else None
        yield stage, sampler
        stage = following


def _summary(stages: dict[str, Sampler], left: Sampler, baseline: ResidentMemory, weights: int) -> dict[str, Any]:
    above = {stage: sampler.total - baseline.total for stage, sampler in stages.items()}
    highest = max(above.values())
    anonymous = max(sampler.anonymous for sampler in stages.values()) - baseline.anonymous
    return {
        "baseline_bytes": baseline.total,
        "peak_above_baseline_bytes": highest,
        "peak_over_weights": round(highest / weights, 2),
        "anonymous_over_weights": round(anonymous / weights, 2),
        "left_over_weights": round((left.first.anonymous - baseline.anonymous) / weights, 2),
        "peak_over_weights_by_stage": {stage: round(value / weights, 2) for stage, value in above.items()},
    }


def child(model: str) -> None:
    """Captures a model, says so, and compiles it when told to; says which stage it is at."""
    import pipeline
    from benchmarks.workloads import case as made

    case = made(model)
    program = pipeline.capture(case.model, (), case.kwargs, case.dynamic_shapes)
    weights = sum(t.untyped_storage().nbytes() for t in {t.data_ptr(): t for t in program.parameters.values()}.values())
    _warm_up()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    print(json.dumps({"weights": weights}), flush=True)
    sys.stdin.readline()
    compile = pipeline.default().observed_by(_say)
    compiled = compile(program)
    print(json.dumps({"stage": ""}), flush=True)
    sys.stdin.readline()
    assert not compiled.coverage.fallback, compiled.coverage


def _say(event: Any) -> None:
    if event.kind == "started":
        print(json.dumps({"stage": event.stage}), flush=True)


def _warm_up() -> None:
    """Libraries, with those in which TensorRT makes kernels, are loaded before the baseline: they are no model's."""
    import pipeline
    from examples.models import small

    for name in ("resnet18", "llama"):
        case = small(name, torch.float16)
        pipeline.default()(case.model, (), case.kwargs, case.dynamic_shapes)


if __name__ == "__main__":
    child(sys.argv[1])
