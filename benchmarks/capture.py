"""``python -m benchmarks.capture [NAME ...] [--every N] [--add]``: capture beside torch.export's call, over the zoo.

Both get the same module, inputs and dynamic dims, one after the other in one process, and after a capture that is not
measured. Processor time, in one thread. Writes ``benchmarks/results/capture.json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import pipeline
from benchmarks import environment, zoo
from benchmarks.architectures import Architecture
from examples.models import Case
from pipeline.errors import CaptureError
from pipeline.export_fixes.dynamic_shapes import merge_dynamic_shapes

TARGETS = {"median": 1.2, "worst": 2.0}
"""What capture may take, in multiples of torch.export's own call."""


def row(architecture: Architecture) -> dict[str, Any] | None:
    """Processor time of capture and of torch.export for the dims that capture can vary; None if it takes none.

    ``refused``: torch.export gives no program for these dims, nor with ``strict=True``, with which it is asked again as
    capture does; its time is that until it says so.
    """
    try:
        program, case = zoo.captured(architecture.case(torch.float32))
    except CaptureError:
        return None
    theirs, refused = seconds(lambda: exported(case))
    if refused:
        again, refused = seconds(lambda: exported(case, strict=True))
        theirs += again
    settings = pipeline.CompilationSettings(decisions=case.decisions)
    ours, _ = seconds(lambda: pipeline.capture(case.model, (), case.example, case.dynamic_shapes, settings=settings))
    return {
        "name": architecture.name,
        "task": architecture.task,
        "nodes": sum(node.op == "call_function" for node in program.graph.nodes),
        "export_seconds": round(theirs, 3),
        "capture_seconds": round(ours, 3),
        "ratio": round(ours / theirs, 2),
        "refused": refused,
    }


def exported(case: Case, *, strict: bool = False) -> Any:
    """What torch.export gives by itself."""
    with torch.no_grad():
        shapes = merge_dynamic_shapes(case.model, (), case.kwargs, case.dynamic_shapes)  # as torch.export names them
        return torch.export.export(case.model, (), case.kwargs, dynamic_shapes=shapes, strict=strict)


def seconds(call: Callable[[], Any]) -> tuple[float, bool]:
    """Processor time of a call, and whether it failed."""
    gc.collect()
    started, failed = time.process_time(), False
    try:
        call()
    except Exception:  # torch.export refuses in many ways
        failed = True
    return time.process_time() - started, failed


def result(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of these rows. There is nothing to compare where torch.export gives no program."""
    ratios = [r["ratio"] for r in rows if not r["refused"]] or [0.0]
    figures = {"median": round(statistics.median(ratios), 2), "worst": max(ratios)}
    return {"captures": list(rows), **figures, "targets": TARGETS}


def missed(found: dict[str, Any]) -> list[str]:
    """The targets that were missed, in words."""
    return [
        f"the {name} is {found[name]} times torch.export, not {limit}"
        for name, limit in TARGETS.items()
        if found[name] > limit
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, saves and prints; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.capture", description=__doc__)
    parser.add_argument("names", nargs="*", help="names of architectures; all if none")
    parser.add_argument("--every", type=int, default=1, help="each N-th architecture only")
    parser.add_argument("--add", action="store_true", help="keep the rows of the result, and measure the others only")
    options = parser.parse_args(argv)
    every = [a for table in zoo.TABLES for a in zoo.architectures(table)][:: options.every]
    path = environment.RESULTS / "capture.json"
    before = json.loads(path.read_text(encoding="utf-8")) if options.add and path.exists() else {"captures": []}
    rows: list[dict[str, Any]] = before["captures"]
    note = {"note": before["note"]} if "note" in before else {}
    known = {(found["task"], found["name"]) for found in rows}
    chosen = [a for a in every if a.name in options.names or not options.names]
    for architecture in [a for a in chosen if (a.task, a.name) not in known]:
        found = row(architecture)
        if found is not None:
            rows.append(found)
            print("{name} ({task}): {capture_seconds} s for {export_seconds} s, {ratio}".format(**found), flush=True)
            environment.save("capture", {**note, "every": options.every, **result(rows)})
    faults = missed(result(rows))
    for fault in faults:
        print(f"target missed: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.exit(main())
