"""``python -m benchmarks.keeping [NAME ...]``: saving and loading a program beside copying its file, and compiling with
a warm engine cache beside capturing alone.

Copying reads the file and writes another with the guarantees of saving: beside its place, fsync of the file, moved
there in one step, fsync of the folder. Saving, copying and loading take five turns, and each is the best of its
own; ``_cpu_s`` are seconds of all threads. Writes ``benchmarks/results/keeping.json``.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pipeline
from benchmarks.environment import collect
from examples.models import full
from pipeline.runtime.atomic import replacing

NAMES = ("resnet50", "bert")


def best(acts: dict[str, Callable[[], Any]], turns: int = 5) -> dict[str, float]:
    """The least seconds that each act takes, by the clock (``save_s``) and of the processors (``save_cpu_s``)."""
    found: dict[str, list[float]] = {}
    for name, act in list(acts.items()) * turns:
        start, used = time.perf_counter(), time.process_time()
        act()
        found.setdefault(f"{name}_s", []).append(time.perf_counter() - start)
        found.setdefault(f"{name}_cpu_s", []).append(time.process_time() - used)
    return {name: round(min(seconds), 3) for name, seconds in found.items()}


def copied(source: Path, target: Path) -> None:
    """A copy that is whole or not there, and on the disk."""
    with source.open("rb") as old, replacing(target) as new:
        shutil.copyfileobj(old, new, 1 << 22)


def row(name: str, folder: Path) -> dict[str, Any]:
    """The seconds of one model."""
    case, taken = full(name), dict[str, float]()

    def note(event: pipeline.Event) -> None:
        if event.seconds is not None:
            taken[event.stage] = event.seconds

    store = pipeline.DiskStore(folder / "engines")
    compile = pipeline.default().replace("build", pipeline.cached(store)).observed_by(note)
    compiled = compile(case.model, (), case.kwargs, case.dynamic_shapes)
    cold = sum(taken.values())
    compile(case.model, (), case.kwargs, case.dynamic_shapes)
    path = folder / "p.trtp"
    compiled.save(path)
    acts = {"save": lambda: compiled.save(path), "load": lambda: pipeline.load(path)}
    times = best({"copy": lambda: copied(path, folder / "copy"), **acts})
    warm = sum(taken.values())
    return {
        "model": name,
        "bytes": path.stat().st_size,
        **times,
        "cold_s": round(cold, 3),
        "warm_s": round(warm, 3),
        "capture_s": round(taken["capture"], 3),
        "stages": {stage: round(seconds, 3) for stage, seconds in taken.items()},
        "save_per_copy": round(times["save_s"] / times["copy_s"], 2),
        "load_per_copy": round(times["load_s"] / times["copy_s"], 2),
        "warm_per_capture": round(warm / taken["capture"], 2),
    }


def rows(names: list[str]) -> Iterator[list[dict[str, Any]]]:
    """The rows, one by one."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            yield [row(name, Path(folder))]


def main() -> None:
    """Measures, prints and writes down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), help="example models; default: resnet50 and bert")
    warnings.simplefilter("ignore", pipeline.ArtifactWarning)
    collect("keeping", "kept", rows(parser.parse_args().names), of=("model",), add=True)


if __name__ == "__main__":
    main()
