"""``python -m benchmarks.builds``: engines of the small example models, built without a GPU by the TensorRT at hand.

Writes ``benchmarks/results/builds_FLAVOUR_VERSION.json``, a row for each model and dtype, from which
``benchmarks.tables`` makes the table of docs/versions.md. A build that crashes its process is a row too.
"""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

import torch

import pipeline
from benchmarks.environment import Row, save
from examples.models import SMALL, small
from pipeline.trt import CAPABILITIES

DTYPES = ("float32", "float16", "bfloat16")


def row(name: str, dtype: str) -> Row:
    """One model in one dtype: engines, their bytes, and fallbacks; or ``failed``."""
    case = small(name, getattr(torch, dtype))
    found: Row = {"name": name, "dtype": dtype}
    try:
        compiled = pipeline.default()(case.model, (), case.kwargs, case.dynamic_shapes)
    except pipeline.PipelineError as error:
        return {**found, "failed": str(error).splitlines()[0]}
    size = sum(len(engine.plan) for engine in compiled.engines)
    return {**found, "engines": len(compiled.engines), "bytes": size, "fallbacks": len(compiled.coverage.fallback)}


def rows() -> Iterator[Row]:
    """All models in all dtypes, each model in a process of its own."""
    for name in SMALL:
        with concurrent.futures.ProcessPoolExecutor(1) as pool:
            for dtype in DTYPES:
                try:
                    yield pool.submit(row, name, dtype).result()
                except BrokenProcessPool:
                    yield {"name": name, "dtype": dtype, "failed": "the process crashed"}


def main() -> int:
    """Builds them; 1 if one failed."""
    found = []
    for each in rows():
        print(each, flush=True)
        found.append(each)
    print(save(f"builds_{CAPABILITIES.flavour}_{CAPABILITIES.version}", {"builds": found}))
    return 1 if any("failed" in each for each in found) else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
