"""Peak memory of a compilation, seen from outside: ``python -m benchmarks.memory MODEL`` prints what it measured.

The compilation runs in a process of its own; this one reads its resident set every 5 ms. The baseline is what it
holds when the model is captured and free memory was given back.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

INTERVAL = 0.005
PAGE = os.sysconf("SC_PAGE_SIZE")


def peak(model: str) -> dict[str, Any]:
    """Peak above the baseline for a model of `workloads.case`, in bytes and in multiples of the weights', by stage."""
    command = [sys.executable, "-m", "benchmarks.memory", model]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        weights = json.loads(child.stdout.readline())["weights"]
        sampler = Sampler(child.pid)
        baseline = sampler.sample()
        with sampler:
            child.stdin.write("go\n")
            child.stdin.flush()
            for line in child.stdout:
                sampler.stage = json.loads(line)["stage"]
    if child.returncode:
        raise RuntimeError(f"the compilation of {model} ended with code {child.returncode}")
    above = {stage: most - baseline for stage, most in sampler.peaks.items() if stage}
    highest = max(above.values())
    return {
        "model": model,
        "weights_bytes": weights,
        "baseline_bytes": baseline,
        "peak_above_baseline_bytes": highest,
        "peak_over_weights": round(highest / weights, 2),
        "peak_over_weights_by_stage": {stage: round(value / weights, 2) for stage, value in above.items()},
    }


class Sampler:
    """Reads a process's resident set again and again; keeps the highest for each stage."""

    def __init__(self, pid: int) -> None:
        self.path = Path(f"/proc/{pid}/statm")
        self.stage = ""
        self.peaks: dict[str, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def sample(self) -> int:
        """The resident set now, in bytes; 0 once the process has ended."""
        try:
            return int(self.path.read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            return 0

    def _run(self) -> None:
        while not self._done.is_set():
            self.peaks[self.stage] = max(self.peaks.get(self.stage, 0), self.sample())
            time.sleep(INTERVAL)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


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
