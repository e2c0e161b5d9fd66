"""``python -m benchmarks.kernels``: the kernels of engines, and what the passes of ``improve`` save of them. No GPU.

They are read in the plans (`pipeline.network.kernels`). What a kernel saved is worth is told on a GPU, by ``python -m
benchmarks.improvements``; that it is saved shows here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.environment import collect
from benchmarks.improvements import CASES, chosen, variants
from pipeline import Compiled
from pipeline.network.kernels import Kernel, kernels

CAPABILITY = "8.9"
"""Plans are made for this compute capability alone: they hold a program for each."""


def of(compiled: Compiled) -> tuple[Kernel, ...]:
    """The kernels of all engines of a program."""
    return tuple(kernel for engine in compiled.engines for kernel in kernels(bytes(engine.plan)))


def measured(name: str) -> list[dict[str, Any]]:
    """Rows of a case: each variant's kernels, by role."""
    model, inputs, settings = chosen(name)
    compiled = variants(model, inputs, compute_capabilities=(CAPABILITY,), **settings)
    return [{"model": name, "passes": passes, **_counted(of(each))} for passes, each in compiled.items()]


def _counted(found: Iterable[Kernel]) -> dict[str, int]:
    roles = [kernel.role for kernel in found]
    return {"kernels": len(roles), **{f"{role}s": roles.count(role) for role in ("product", "attention", "other")}}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, saves and prints."""
    parser = argparse.ArgumentParser(description="what each pass saves of an engine's kernels")
    cases = [case for case in CASES if "refittable" not in case]  # such engines are built on a GPU only
    parser.add_argument("--models", nargs="+", default=cases, choices=cases)
    parser.add_argument("--add", action="store_true", help="keep what was counted of other models before")
    options = parser.parse_args(argv)
    parts = map(measured, options.models)
    collect("kernels", "kernels", parts, of=["model"], add=options.add, capability=CAPABILITY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
