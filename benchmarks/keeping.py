"""``python -m benchmarks.keeping [NAME ...]``: saving and loading a program beside copying its file, and compiling with
a warm engine cache beside capturing alone.

Copying reads the file and writes another with fsync, as saving does; each is the best of three. Writes
``benchmarks/results/keeping.json``.
"""

from __future__ import annotations

import argparse
import os
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

NAMES = ("resnet50", "bert")


def best(act: Callable[[], Any], times: int = 3) -> float:
    """The least seconds that something takes."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        act()
        found.append(time.perf_counter() - start)
    return round(min(found), 3)


def copied(source: Path, target: Path) -> None:
    """A copy that is on the disk."""
    with source.open("rb") as old, target.open("wb") as new:
        shutil.copyfileobj(old, new, 1 << 22)
        new.flush()
        os.fsync(new.fileno())


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
    save = best(lambda: compiled.save(path))
    copy = best(lambda: copied(path, folder / "copy"))
    load = best(lambda: pipeline.load(path))
    warm = sum(taken.values())
    return {
        "model": name,
        "bytes": path.stat().st_size,
        "copy_s": copy,
        "save_s": save,
        "load_s": load,
        "cold_s": round(cold, 3),
        "warm_s": round(warm, 3),
        "capture_s": round(taken["capture"], 3),
        "stages": {stage: round(seconds, 3) for stage, seconds in taken.items()},
        "save_per_copy": round(save / copy, 2),
        "load_per_copy": round(load / copy, 2),
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
