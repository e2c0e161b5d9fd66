"""``python -m benchmarks.verify [NAME ...] [--full]``: what `verify` costs beside compiling, for the example models.

On a CPU engines run on the reference executor, and both are processor time; on a GPU both are wall time. Each is the
least of three compilations of small models, by which torch has made its kernels for their shapes, and of one of full
size. Writes ``benchmarks/results/verify-<machine>.json``.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import pipeline
from benchmarks.environment import save
from examples.models import FULL, SMALL, full, small

TARGET = 0.1
"""The share of compiling that `verify` should cost at most."""


TURNS = 3
"""How often a small model is compiled."""


def row(name: str, whole: bool) -> dict[str, Any]:
    """Seconds of compiling and of `verify`, and how well the model agrees."""
    turns = [_turn(name, whole) for _ in range(1 if whole else TURNS)]
    compile_s, verify_s = (min(turn[key] for turn in turns) for key in ("compile_s", "verify_s"))
    return {**turns[-1], "compile_s": compile_s, "verify_s": verify_s, "share": round(verify_s / compile_s, 3)}


def _turn(name: str, whole: bool) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    clock = time.perf_counter if on_gpu else time.process_time
    case = (full if whole else small)(name)
    model = case.model.cuda() if on_gpu else case.model
    kwargs = {k: v.cuda() if on_gpu and isinstance(v, torch.Tensor) else v for k, v in case.kwargs.items()}
    taken: dict[str, float] = {}

    def note(event: pipeline.Event) -> None:
        if event.kind in ("started", "finished"):
            taken[event.stage] = clock() - taken.get(event.stage, 0.0)

    compile = pipeline.default() | pipeline.verify("warn")
    compiled = compile.observed_by(note)(model, (), kwargs, case.dynamic_shapes)
    cost = taken.pop("verify")
    worst = compiled.agreement.worst
    return {
        "model": name,
        "compile_s": round(sum(taken.values()), 3),
        "verify_s": round(cost, 3),
        "holds": compiled.agreement.holds,
        "error": worst.error,
        "bound": worst.bound,
    }


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="example models; default: all")
    parser.add_argument("--full", action="store_true", help="of their published size")
    options = parser.parse_args()
    row("vit", False)  # what is imported and made once is nobody's cost
    rows = []
    for name in options.names or (FULL if options.full else SMALL):
        rows.append(row(name, options.full))
        print(
            "{model:10} compile {compile_s:6.2f} s, verify {verify_s:6.2f} s, {share:.1%}".format(**rows[-1]),
            flush=True,
        )
    total = sum(r["verify_s"] for r in rows) / sum(r["compile_s"] for r in rows)
    print(f"together {total:.1%}, {sum(r['share'] <= TARGET for r in rows)} of {len(rows)} at most {TARGET:.0%}")
    machine = torch.cuda.get_device_name().lower().replace(" ", "-") if torch.cuda.is_available() else "cpu"
    print(save(f"verify-{machine}{'-full' * options.full}", {"verified": rows, "together": round(total, 3)}))


if __name__ == "__main__":
    main()
