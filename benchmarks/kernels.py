"""``python -m benchmarks.kernels``: the kernels of engines, and what the passes of ``improve`` save of them. No GPU.

A plan of TensorRT-RTX 1.4 holds, in words, the program that its engine runs: a line for each kernel. That is documented
nowhere, so nothing but this measurement, a warning of ``build`` and their tests relies on it. What a kernel saved is
worth is told on a GPU, by ``python -m benchmarks.improvements``; that it is saved shows here.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen

from benchmarks.environment import collect
from benchmarks.improvements import CASES, chosen, variants
from pipeline import Compiled

CAPABILITY = "8.9"
"""Plans are made for this compute capability alone: they hold a program for each."""

_LINE = re.compile(r"^ +(\w+)=\{ name=(\"[^\"]*\"|\S+)")
_UNCOUNTED = frozenset({"shape_call", "signal", "wait"})
PRODUCTS = frozenset({"fully_connected", "runtime_fusion", "corrltn"})
"""Products and convolutions, with what follows them in the same kernel."""


@frozen
class Kernel:
    """A step of an engine's program: ``kind`` is TensorRT's word, ``name`` says what is fused in it."""

    kind: str
    name: str

    @property
    def role(self) -> str:
        """``product``, ``attention``, or ``other``."""
        if self.kind in PRODUCTS:
            return "product"
        return "attention" if "_mha" in self.name else "other"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def kernels(plan: bytes) -> tuple[Kernel, ...]:
    """The steps of a plan's program, in order. ValueError if the plan holds none in words."""
    found = re.search(rb"main \{\n.*?(?=\n[a-z_]*main|\x00)", plan, re.S)
    if found is None:
        raise ValueError("this plan holds no program in words: TensorRT-RTX 1.4 writes one")
    lines = map(_LINE.match, found[0].decode(errors="replace").splitlines())
    steps = (Kernel(line[1], line[2].strip('"')) for line in lines if line)
    return tuple(step for step in steps if step.kind not in _UNCOUNTED)


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
