"""``python -m benchmarks.gpu_dynamic``: one engine for many shapes on this GPU, and what changing the shape costs.

BERT with dynamic batch and sequence, in float16. Each of four shapes is measured alone; then they are called in turn.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import evolve

import pipeline
from benchmarks.environment import save
from benchmarks.gpu import Plain, error, gpu_name
from benchmarks.turns import in_turns
from examples.models import Case, full
from pipeline.cli.usage import first_line

SHAPES = ((1, 32), (2, 64), (4, 128), (8, 128))
"""(batch, sequence)"""
TURNS = 100


def compiled(case: Case) -> pipeline.Compiled:
    """One engine for every batch and sequence."""
    compile = pipeline.default(require_full_compilation=True)
    result: pipeline.Compiled = compile(case.model, args=(), kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)
    return result


def methods(case: Case) -> dict[str, Callable[..., Any]]:
    """What is compared, by name; what takes longest to compile comes last."""
    result, plain = compiled(case), Plain(case.model)
    return {
        "pipeline": result.module(executor="tensorrt"),
        "pipeline + graph": result.module(executor="tensorrt", cuda_graphs=True),
        "eager": plain,
        "torch.compile dynamic": torch.compile(plain, dynamic=True),
    }


def in_turn(call: Callable[..., Any], inputs: list[dict[str, torch.Tensor]]) -> float:
    """Milliseconds a call when the shape changes at every call, each awaited."""
    for given in itertools.chain(*itertools.repeat(inputs, 5)):
        call(**given)
    taken = []
    for given in itertools.chain(*itertools.repeat(inputs, TURNS)):
        torch.cuda.synchronize()
        before = time.perf_counter()
        call(**given)
        torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - before))
    return statistics.mean(statistics.median(taken[i :: len(inputs)]) for i in range(len(inputs)))


def alone(call: Callable[..., Any], inputs: list[dict[str, torch.Tensor]]) -> float:
    """The same when every call has the shape of the one before it."""
    return statistics.mean(in_turn(call, [given]) for given in inputs)


def measured(
    call: Callable[..., Any], inputs: list[dict[str, torch.Tensor]], expected: list[list[torch.Tensor]]
) -> dict[str, Any]:
    """A method's row: each shape alone, and all in turn."""
    errors = [error(call(**given), wanted) for given, wanted in zip(inputs, expected, strict=True)]
    times = in_turns({str(shape): partial(call, **given) for shape, given in zip(SHAPES, inputs, strict=True)})
    shapes = [
        {"batch": shape[0], "sequence": shape[1], "relative_error": wrong, **times[str(shape)]}
        for shape, wrong in zip(SHAPES, errors, strict=True)
    ]
    one, changing = alone(call, inputs), in_turn(call, inputs)
    return {"shapes": shapes, "alone_ms": one, "in_turn_ms": changing, "ratio": round(changing / one, 3)}


def main() -> int:
    """Measures, saves after each method, and prints; 2 where there is no GPU."""
    if not torch.cuda.is_available():
        print("benchmarks.gpu_dynamic: there is no GPU here", file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    case = full("bert", torch.float16)
    case = evolve(case, model=case.model.cuda(), kwargs={k: v.cuda() for k, v in case.kwargs.items()})
    exact = evolve(case, model=full("bert").model.cuda())
    inputs = [{k: v.cuda() for k, v in case.inputs(batch=b, sequence=s).items()} for b, s in SHAPES]
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        expected = [[leaf.float() for leaf in Plain(exact.model)(**given)] for given in inputs]
        for name, call in methods(case).items():
            try:
                rows.append({"method": name, **measured(call, inputs, expected)})
            except Exception as raised:
                rows.append({"method": name, "failed": f"{type(raised).__name__}: {first_line(raised)}"})
            print(json.dumps(rows[-1]), flush=True)
            path = save(f"gpu-dynamic-{gpu_name()}", {"model": "bert", "dtype": "float16", "dynamic": rows})
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
