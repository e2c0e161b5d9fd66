"""``python -m benchmarks.zoo_devices [text|vision|audio|…] [NAME ...]``: every architecture of the zoo captured as on a
GPU, on a machine without one. Where its graph is another than on the CPU, it is run on the reference executor beside
eager PyTorch and float64.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch

import pipeline
from benchmarks import zoo
from benchmarks.architectures import Architecture
from pipeline.errors import CaptureError
from pipeline.testing.programs import first_difference

WORST = 4.0
"""How many times eager's own error ours may be, beside a floor for results that are right to the last digit."""

FLOOR = 2e-5


def row(architecture: Architecture) -> dict[str, Any]:
    """What an architecture gives as on a GPU: ``refused`` on the CPU too, ``failed``, or ``alike``; else its errors."""
    found: dict[str, Any] = {"name": architecture.name, "task": architecture.task}
    try:
        program, case = zoo.captured(architecture.case())
    except CaptureError as error:
        return {**found, "refused": str(error).splitlines()[0]}
    if case.decisions == "example":
        return {**found, "refused": "the example decides, and a GPU that is not there has no values"}
    try:
        decompose = pipeline.default().until("decompose")
        as_on_gpu = pipeline.capture(case.model, (), case.example, case.dynamic_shapes, device="cuda")
        if not first_difference(decompose(program), decompose(as_on_gpu)):
            return {**found, "alike": True}
        return {**found, "alike": False, **judged(zoo.compiled(architecture, case, as_on_gpu))}
    except Exception as error:
        return {**found, "failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """The errors of a compiled program, and ``failed`` where they are too large."""
    least = FLOOR if found["eager_error"] is None else max(WORST * found["eager_error"], FLOOR)
    errors = {key: found[key] for key in ("error", "eager_error", "fallbacks")}
    return errors if found["error"] <= least else {**errors, "failed": found.get("wrong", "its error is too large")}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each architecture that was asked for; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.zoo_devices", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join(zoo.TABLES)}, or names; everything if none")
    names = set(parser.parse_args(argv).names)
    tables = [table for table in zoo.TABLES if table in names] or list(zoo.TABLES)
    failed = 0
    for each in (each for table in tables for each in zoo.architectures(table)):
        if not names - {*tables} or each.name in names:
            found = row(each)
            failed += "failed" in found
            print(", ".join(f"{key}: {value}" for key, value in found.items()), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
