"""``python -m benchmarks.zoo_kept [TABLE ...] [--first N] [--build]``: models of the zoo, saved, loaded in a process
without their library, and called on the reference executor, which has to give the same bits.

Writes ``benchmarks/results/zoo_kept.json``; rows of earlier runs stay. ``--build`` builds and keeps the engines.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import pipeline
from benchmarks.architectures import Architecture
from benchmarks.environment import collect
from benchmarks.zoo import TABLES, architectures, captured, first_line, fresh
from pipeline.errors import CaptureError
from pipeline.stages.unbuilt import unbuilt

ROOT = Path(__file__).parent.parent


def row(architecture: Architecture, folder: Path, *, build: bool) -> dict[str, Any]:
    """What became of an architecture: ``equal``, or ``refused`` by torch.export, or what ``failed``."""
    found: dict[str, Any] = {"name": architecture.name, "built": build}
    try:
        program, case = captured(architecture.case())
    except CaptureError as error:
        return {**found, "refused": first_line(error)}
    try:
        compile = pipeline.default() if build else pipeline.default().replace("build", unbuilt)
        compiled: pipeline.Compiled = compile(program)
        start = time.perf_counter()
        compiled.save(folder / "p.trtp")
        found |= {"save_s": round(time.perf_counter() - start, 3), "bytes": (folder / "p.trtp").stat().st_size}
        given = tree_leaves(fresh(case.kwargs))
        result = compiled.module("reference")(**fresh(case.kwargs))
        torch.save((given, tree_leaves(result)), folder / "values.pt")
        wrong = elsewhere(folder)
    except Exception as error:
        return {**found, "failed": f"{type(error).__name__}: {first_line(error)}"}
    return {**found, "failed": wrong} if wrong else {**found, "equal": True}


def elsewhere(folder: Path) -> str:
    """What another process says of the program."""
    command = [sys.executable, "-m", "benchmarks.kept_call", str(folder / "p.trtp"), str(folder / "values.pt")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600)
    return done.stdout.strip() if not done.returncode else (done.stderr.strip().splitlines() or ["it crashed"])[-1]


def rows(tables: list[str], first: int | None, *, build: bool) -> Iterator[list[dict[str, Any]]]:
    """The rows, one by one."""
    with tempfile.TemporaryDirectory() as folder:
        for table in tables:
            for architecture in architectures(table)[:first]:
                yield [{"table": table, **row(architecture, Path(folder), build=build)}]


def main() -> None:
    """Goes through the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(TABLES), help="default: all")
    parser.add_argument("--first", type=int, help="only so many of each table")
    parser.add_argument("--build", action="store_true", help="build engines")
    options = parser.parse_args()
    found = rows(options.tables, options.first, build=options.build)
    collect("zoo_kept", "zoo_kept", found, of=("table", "name"), add=True)


if __name__ == "__main__":
    main()
