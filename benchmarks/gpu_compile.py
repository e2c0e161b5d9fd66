"""``python -m benchmarks.gpu_compile``: how long compiling takes on this GPU, here and with Torch-TensorRT.

Seconds of everything between torch.export and the first result, with the kernels that TensorRT compiles for the GPU.
Each is measured in a process of its own, alone, which has compiled a layer before: it has loaded its libraries, and
finds none of the model's kernels in memory. Methods take turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeAlias

import torch

from benchmarks.environment import collect
from benchmarks.gpu import gpu_name, prepared, ready, reason, warm_up
from benchmarks.targets import Group

MODELS = ("resnet50", "timm vit_base_patch16_224")
"""Those of the target."""
BATCHES = (1, 8)
METHODS = ("pipeline", "Torch-TensorRT")
TIMES = 3
PRELOADED = ["torch", "transformers", "transformers.models.resnet.modeling_resnet", "timm"]
"""Modules that a process starts with: none that asks for a GPU, which a fork could not use then."""


def seconds(group: Group, method: str) -> dict[str, Any]:
    """The seconds that a method takes in this process, the memory it takes, and its result's error."""
    case, inputs, expected = prepared(*group)
    warm_up([method])
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        return ready(case, method, inputs, expected)[1]


Run: TypeAlias = Callable[[Group, str], dict[str, Any]]


def measured(group: Group, methods: Sequence[str], times: int, run: Run = seconds) -> list[dict[str, Any]]:
    """A row for each method: its seconds and their median, the most memory and the largest error; or its failure."""
    apart = multiprocessing.get_context("forkserver")
    apart.set_forkserver_preload(PRELOADED)
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    for _ in range(times):
        for method in methods:
            with ProcessPoolExecutor(1, apart) as pool:
                found[method].append(_result(pool.submit(run, group, method)))
    model, dtype, batch = group
    return [{"model": model, "dtype": dtype, "batch": batch, "method": m, **_row(rows)} for m, rows in found.items()]


def _result(future: Future[dict[str, Any]]) -> dict[str, Any]:
    try:
        return future.result()
    except Exception as error:  # the method's, or that its process died
        return {"failed": reason(error)}


def _row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    failed = [row for row in rows if "failed" in row]
    if failed:
        return failed[0]
    peaks = [row["host_peak_mb"] for row in rows if row["host_peak_mb"] is not None]
    taken = [row["compile_seconds"] for row in rows]
    return {
        "compile_seconds": statistics.median(taken),
        "all_seconds": taken,
        "host_peak_mb": max(peaks, default=None),
        "relative_error": max(row["relative_error"] for row in rows),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, saves after each model and batch, and prints; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description="how long compiling takes on this GPU")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--add", action="store_true", help="keep what other models and batches gave before")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks.gpu_compile: there is no GPU here", file=sys.stderr)
        return 2
    groups = [(model, "float16", batch) for model in options.models for batch in options.batches]
    parts = (measured(group, options.methods, options.times) for group in groups)
    collect(f"gpu-compile-{gpu_name()}", "compilations", parts, of=("model", "dtype", "batch"), add=options.add)
    return 0


if __name__ == "__main__":
    sys.exit(main())
