"""``python -m benchmarks.gpu_tests`` runs the GPU tests and writes down what passed, where, and with which versions.

With ``NVIDIA_TF32_OVERRIDE=0`` in the environment, float32 products are IEEE, and the result is kept apart.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import recorded
from benchmarks.environment import RESULTS, collect, save
from benchmarks.gpu import gpu_name

ROOT = Path(__file__).parent.parent
MODELS = "test_models_gpu"
RECORDED = {"attribute_pairs": ("kind", "attribute"), "zoo_gpu": ("task", "name", "dtype")}
"""Tests that record a row each, and the fields that tell rows apart; they lie in result files of these names."""


EVERYDAY = {"PIPELINE_GPU_EXAMPLES": "2", "PIPELINE_GPU_PROGRAMS": "25"}
"""Calls of each operator and random programs for every day."""

Row: TypeAlias = dict[str, Any]


def run(
    workers: int, files: list[str], only: str = "", limit: float | None = None, everyday: bool = False
) -> tuple[list[Row], str]:
    """Run the GPU tests for at most ``limit`` seconds, ``only`` those that the expression selects, and of those what is
    for ``everyday``; return a row for each that ended (`benchmarks.recorded`), and what ended them early: ``limit``,
    ``interrupted`` or nothing. They run side by side, and those that measure, if all run, after them, each alone."""
    until = None if limit is None else time.monotonic() + limit
    chosen, early = ["-k", only] if only else [], ""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "tests.jsonl"
        written.touch()
        defaults = {"OMP_NUM_THREADS": "1", **(EVERYDAY if everyday else {})}  # a process a core, a thread a process
        environment = {**defaults, **os.environ, recorded.FILE: str(written)}
        these = "gpu and not slow" if everyday else "gpu"
        alone = [] if everyday else [("gpu and alone", 0, with_alone(files))]
        for which, processes, paths in ((f"{these} and not alone", workers, files), *alone):
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-v",
                "-m",
                which,
                "-n",
                str(processes),
                "--maxschedchunk",
                "1",
                "-p",
                "benchmarks.recorded",
            ]
            left = None if until is None else max(until - time.monotonic(), 0.0)
            try:
                subprocess.run([*command, *chosen, *paths], cwd=ROOT, check=False, env=environment, timeout=left)
            except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
                early = "limit" if isinstance(error, subprocess.TimeoutExpired) else "interrupted"
                print(f"ended before all tests were: {early}", file=sys.stderr)
                break
        return [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()], early


def with_alone(files: Sequence[str]) -> list[str]:
    """Of files, folders and tests, the files in which tests are marked ``alone``: to collect all takes as long as these
    tests."""
    found = []
    for path in (ROOT / file.partition("::")[0] for file in files):
        inside = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        found += [str(each) for each in inside if "mark.alone" in each.read_text(encoding="utf-8")]
    return found or list(files)


def summary(report: Sequence[Row]) -> dict[str, Any]:
    """Counts by file; each architecture by test and dtype; every test that did not pass, with the reason; seconds of a
    core by file, and together."""
    counts: dict[str, Counter[str]] = {}
    seconds: Counter[str] = Counter()
    for row in report:
        counts.setdefault(row["module"], Counter())[row["outcome"]] += 1
        seconds[row["module"]] += row["seconds"]
    bad = {f"{row['module']}::{row['name']}": row["reason"] for row in report if row["outcome"] in ("failed", "error")}
    return {
        "products": "IEEE" if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0" else "TF32",
        "counts": {module: dict(sorted(found.items())) for module, found in sorted(counts.items())},
        "architectures": dict(sorted((row["name"], row["outcome"]) for row in report if row["module"] == MODELS)),
        "not_passed": dict(sorted(bad.items())),
        "seconds_of_files": {module: round(took) for module, took in seconds.most_common()},
        "seconds_of_tests": round(sum(row["seconds"] for row in report)),
    }


def rows(report: Sequence[Row], kind: str) -> list[Row]:
    """What the tests recorded under this name, in the order in which they ended."""
    return [json.loads(row["properties"][kind]) for row in report if kind in row["properties"]]


def together(result: Row, before: Row) -> Row:
    """Return a result with the files of an earlier one that it has not."""
    earlier = before["counts"].keys() - result["counts"].keys()
    bad = {name: why for name, why in before["not_passed"].items() if name.partition("::")[0] in earlier}
    return {
        **result,
        "counts": dict(sorted({**before["counts"], **result["counts"]}.items())),
        "architectures": result["architectures"] or before["architectures"],
        "not_passed": dict(sorted({**bad, **result["not_passed"]}.items())),
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs them, and writes down what ended; 1 if one failed, 130 if they were interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="pytest's -k: a part of the tests, whose result is kept apart")
    parser.add_argument(
        "--add", action="store_true", help="keep what an earlier run has and this has not: files, and recorded rows"
    )
    parser.add_argument("--everyday", action="store_true", help="the tests of `make gpu-test`, and not all")
    parser.add_argument("--limit", type=float, help="seconds, after which what has ended by then is written down")
    parser.add_argument("files", nargs="*", default=["tests/gpu"])
    given = parser.parse_args(arguments)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report, early = run(given.workers, given.files, given.only, given.limit, given.everyday)
    taken: Row = {"everyday": given.everyday, "workers": given.workers, "seconds": round(time.monotonic() - began)}
    taken |= {"ended_early": early} if early else {}
    result = {"only": given.only, **taken, **summary(report)}
    suffix = f"{gpu_name()}_{result['products'].lower()}"
    part = "_part" * bool(given.only)
    path = RESULTS / f"gpu_tests_{suffix}{part}.json"
    if given.add and path.exists():
        result = together(result, json.loads(path.read_text(encoding="utf-8")))
    path = save(path.stem, result)
    for kind, of in RECORDED.items():
        if found := rows(report, kind):
            name = f"{kind}_{suffix}{'' if given.add else part}"
            collect(name, kind, [found], of=of, add=given.add, products=result["products"])
    passed = sum(found.get("passed", 0) for found in result["counts"].values())
    print(f"{passed} passed, {len(result['not_passed'])} failed: {path}")
    return 1 if result["not_passed"] or not report else 130 * (early == "interrupted")


if __name__ == "__main__":
    sys.exit(main())
