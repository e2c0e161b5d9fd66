"""``python -m benchmarks.gpu_start``: how soon a compiled program gives its first result on this GPU.

Each model is compiled in a process of its own, measured from ``Compiled.module()`` to the first result, and saved.
Another process loads the file and finds the kernels that the first one kept: measured from the inputs on the host to
the first result, with what CUDA takes to begin, and imports told apart. In float16 at batch 1.
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


def first(model: str, folder: str) -> dict[str, float]:
    """Compile a model, save it into a folder and run it, with the kernels that are kept there."""
    case = full(model, torch.float16)
    inputs = {name: value.cuda() for name, value in case.inputs(batch=1).items()}
    compile = pipeline.default(require_full_compilation=True)
    with torch.no_grad():
        compiled = compile(Plain(case.model).cuda().eval(), args=(), kwargs=inputs)
        torch.save({name: value.cpu() for name, value in inputs.items()}, f"{folder}/inputs.pt")
        compiled.save(f"{folder}/model.pipeline")
        torch.cuda.synchronize()
        start = time.perf_counter()
        compiled.module(executor="tensorrt", runtime_cache=f"{folder}/kernels")(**inputs)
        torch.cuda.synchronize()
        return {"first_seconds": time.perf_counter() - start}


def measured(model: str) -> dict[str, Any]:
    """A model's row: its first start, a start from its file in another process, and how large the kept kernels are."""
    with tempfile.TemporaryDirectory() as folder:
        row = {"model": model, **_apart("gpu_start", "--child", model, folder), **_apart("kept_start", folder)}
        files = (file for file in Path(folder, "kernels").rglob("*") if file.is_file())
        kept = sum(file.stat().st_size for file in files) / 1e6
        return {**row, "file_mb": round(Path(folder, "model.pipeline").stat().st_size / 1e6), "kept_mb": round(kept, 2)}


def _apart(module: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {name: round(seconds, 3) for name, seconds in found.items()}


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
        print(json.dumps(first(*options.child)))
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
