"""Run a suite of others: ``python -m benchmarks.suites SUITE --log FILE [--source FILE]``; docs/testing.md has each.

A run appends a line of JSON for each case to the log, and goes on where an earlier one stopped. ``--results`` writes
the log's counts to benchmarks/results, from which ``benchmarks.tables`` makes the table of docs/testing.md.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.suites.run import rows, run, sampled
from benchmarks.suites.summary import share, write

SUITES = ("opinfo", "inductor", "timm_models", "onnx_nodes", "torch_tensorrt", "torch_tensorrt_models")
SUITES += ("transformers_exporters",)


def main() -> int:
    """Run the cases; the exit code is 1 if one is wrong, or if fewer are right than ``--least``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--log", type=Path, required=True, help="a line of JSON a case; cases in it are not run again")
    parser.add_argument("--source", type=Path, help="the suite's file, for suites that are not installed")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--count", type=int, help="so many cases, drawn by --seed; all without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no case after so long")
    parser.add_argument("--results", action="store_true", help="write the log's counts to benchmarks/results")
    parser.add_argument(
        "--least", type=float, metavar="PERCENT", help="fail if fewer cases are right, not if one is wrong"
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    suite: Any = importlib.import_module(f"benchmarks.suites.{options.suite}")
    cases = [case for case in suite.cases(*filter(None, [options.source])) if options.only in case.name]
    run(sampled(cases, options.count, options.seed), options.log, options.seconds)
    found = rows(options.log)
    if options.results:
        write(options.suite, suite.version(*filter(None, [options.source])), len(cases), found)
    wrong = [f"{row['case']}: {row['reason']}" for row in found.values() if row["outcome"] == "wrong"]
    print("\n".join(wrong) or f"{len(found)} cases, none is wrong")
    if options.least is None:
        return int(bool(wrong))
    right = share(found)
    left_out = [row["reason"] for row in found.values() if row["outcome"] == "no case"]
    first = f", {len(left_out)} are no case, the first because {left_out[0]}" if left_out else ""
    print(f"{right:.1f} % are right{first}")
    return int(right < options.least)


if __name__ == "__main__":
    sys.exit(main())
