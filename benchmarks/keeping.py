"""``python -m benchmarks.keeping [NAME ...] [--dtype float16]``: saving and loading a program beside copying its file,
and compiling with a warm cache of engines beside capturing alone.

Copying reads the file and writes another with the guarantees of saving: beside its place, fsync of the file, moved
there in one step, fsync of the folder. Saving, copying and loading take five turns, and each is the best of its
own; ``_cpu_s`` are seconds of all threads, ``_main_s`` those of the one that calls. ``benchmarks.kept_memory`` tells
what loading takes in a process of its own. Writes ``benchmarks/results/keeping.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import pipeline
from benchmarks.environment import collect
from examples.models import full
from pipeline.runtime.atomic import replace_file

NAMES = ("resnet50", "bert")
CLOCKS = {"s": time.perf_counter, "cpu_s": time.process_time, "main_s": time.thread_time}


def best(acts: dict[str, Callable[[], Any]], turns: int = 5) -> dict[str, float]:
    """The least seconds that each act takes: by the clock, of all threads, of this thread."""
    found: dict[str, list[float]] = {}
    for name, act in list(acts.items()) * turns:
        before = [clock() for clock in CLOCKS.values()]
        act()
        for (kind, clock), start in zip(CLOCKS.items(), before, strict=True):
            found.setdefault(f"{name}_{kind}", []).append(clock() - start)
    return {name: round(min(seconds), 3) for name, seconds in found.items()}


def copied(source: Path, target: Path) -> None:
    """A copy that is whole or not there, and on the disk."""
    with source.open("rb") as old, replace_file(target) as new:
        shutil.copyfileobj(old, new, 1 << 22)


def elsewhere(path: Path) -> dict[str, Any]:
    """What loading a program takes in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.kept_memory", str(path)]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def row(name: str, dtype: str, folder: Path) -> dict[str, Any]:
    """The seconds of one model."""
    case, store = full(name, getattr(torch, dtype)), pipeline.DiskStore(folder / "store", size=20 << 30)
    given = (case.model, (), case.kwargs, case.dynamic_shapes)
    compile = pipeline.default().replace("build", pipeline.cached(store))
    start = time.perf_counter()
    compiled, path = compile(*given), folder / "p.trtp"
    cold = time.perf_counter() - start
    times = best({"capture": lambda: pipeline.capture(*given), "warm": lambda: compile(*given)})
    compiled.save(path)
    acts = {"save": lambda: compiled.save(path), "load": lambda: pipeline.load(path)}
    times |= best({"copy": lambda: copied(path, folder / "copy"), **acts})
    compared = {"save": "copy", "load": "copy", "warm": "capture"}
    return {
        "model": name,
        "dtype": dtype,
        "bytes": path.stat().st_size,
        "cold_s": round(cold, 3),
        **times,
        **{f"{act}_per_{to}": round(times[f"{act}_s"] / times[f"{to}_s"], 2) for act, to in compared.items()},
        **elsewhere(path),
    }


def rows(names: list[str], dtype: str) -> Iterator[list[dict[str, Any]]]:
    """The rows, one by one."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            yield [row(name, dtype, Path(folder))]


def main() -> None:
    """Measures, prints and writes down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), help="example models; default: resnet50 and bert")
    parser.add_argument("--dtype", default="float32", help="of the models; default: float32")
    options = parser.parse_args()
    warnings.simplefilter("ignore", pipeline.ArtifactWarning)
    collect("keeping", "kept", rows(options.names, options.dtype), of=("model", "dtype"), add=True)


if __name__ == "__main__":
    main()
