"""Runs random programs by their seeds: ``python -m benchmarks.fuzz 0:200 [--build-every 10] [--log FILE]``.

Prints a line for each program that fails, and a count. ``--log`` appends a line of JSON a program; ``--backend`` runs
the models under ``torch.compile``.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import CaptureError
from tests.fuzz import ModelError, program


def run(seed: int, build: bool, backend: bool = False) -> dict[str, Any]:
    """What became of the program of a seed: passed, refused by torch.export, or how it failed."""
    start = time.process_time()
    row: dict[str, Any] = {"seed": seed, "built": build}
    try:
        snippet = program(seed)
        if backend:
            snippet.run_backend()
            row |= {"result": "passed"}
        else:
            compiled = (snippet.with_options(build="True") if build else snippet).run()
            segments = compiled.partitioned.segments
            row |= {"result": "passed", "operators": compiled.coverage.total, "segments": len(segments)}
            row["engines"] = len(compiled.partitioned.engine_segments)
    except CaptureError as error:
        row |= {"result": "refused", "message": str(error)}
    except ModelError as error:
        row |= {"result": error.kind, "message": str(error)}
    except Exception as error:
        row |= {"result": type(error).__name__, "message": str(error)}
    return row | {"seconds": round(time.process_time() - start, 2)}


def main() -> int:
    """Runs the programs; the exit code is 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", help="FIRST:LAST, the last left out")
    parser.add_argument("--build-every", type=int, default=10, help="build the engines of one program in so many")
    parser.add_argument("--backend", action="store_true", help="run them under torch.compile, without engines")
    parser.add_argument("--log", type=Path, help="append a line of JSON a program to this file")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for seed in range(*map(int, options.seeds.split(":"))):
        row = run(seed, build=bool(options.build_every) and seed % options.build_every == 0, backend=options.backend)
        counts[row["result"]] += 1
        if options.log:
            with options.log.open("a") as log:
                print(json.dumps(row), file=log)
        if row["result"] not in ("passed", "refused"):
            print(f"{seed}: {row['result']}: {row['message'].splitlines()[0]}", flush=True)
    print(f"{options.seeds}: {dict(counts)}")
    return int(bool(set(counts) - {"passed", "refused"}))


if __name__ == "__main__":
    sys.exit(main())
