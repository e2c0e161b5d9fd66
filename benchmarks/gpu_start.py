"""``python -m benchmarks.gpu_start``: how soon a compiled program gives its first result on this GPU.

Each model is compiled in a process of its own, and then again in another, which finds the kernels that the first one
kept on disk. Measured from ``Compiled.module()`` to the first result, in float16 at batch 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import pipeline
from benchmarks.environment import save
from benchmarks.gpu import MODELS, Plain, gpu_name
from examples.models import full


def started(model: str, folder: str) -> float:
    """Seconds until a program's first result, in this process, with the kernels that are kept in a folder."""
    case = full(model, torch.float16)
    inputs = {name: value.cuda() for name, value in case.inputs(batch=1).items()}
    compile = pipeline.default(require_full_compilation=True)
    with torch.no_grad():
        compiled = compile(Plain(case.model).cuda().eval(), args=(), kwargs=inputs)
        torch.cuda.synchronize()
        start = time.perf_counter()
        compiled.module(executor="tensorrt", runtime_cache=folder)(**inputs)
        torch.cuda.synchronize()
        return time.perf_counter() - start


def measured(model: str) -> dict[str, Any]:
    """A model's row: its first start and its second, and how large the kernels are that are kept."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = (_apart(model, folder) for _ in range(2))
        kept = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {"model": model, "first_seconds": first, "second_seconds": second, "kept_mb": round(kept / 1e6, 2)}


def _apart(model: str, folder: str) -> float:
    command = [sys.executable, "-m", "benchmarks.gpu_start", "--child", model, folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return round(float(done.stdout.splitlines()[-1]), 3)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, saves and prints; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description="the first and the second start of a program on this GPU")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--processes", type=int, default=1, help="so many models start side by side")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks.gpu_start: there is no GPU here", file=sys.stderr)
        return 2
    if options.child:
        print(started(*options.child))
        return 0
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.processes) as pool:
        for row in pool.map(measured, options.models):
            rows.append(row)
            print(json.dumps(row), flush=True)
    data = {"dtype": "float16", "batch": 1, "side_by_side": options.processes, "starts": rows}
    print(f"written to {save(f'gpu-start-{gpu_name()}', data)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
