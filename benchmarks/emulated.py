"""Finds wrong kernels without a GPU: ``python -m benchmarks.emulated 0:500 [--dtype float16]``.

Each seed is a random program of what TensorRT fuses. Its engine's kernels run on this CPU (`benchmarks.emulator`) and
are compared with eager in float64. Prints each program that is wrong beyond 10 times eager's own error, and counts.
Processes share the work.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Final, TypeAlias

import torch

import pipeline
from benchmarks.emulator import NotEmulated, emulated
from benchmarks.emulator.programs import Program, program

FLOORS: Final = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Errors, relative to the largest value, that rounding may make where eager has none."""
TF32: Final = 4e-3
"""What products of float32 add on a GPU."""


class _Model(torch.nn.Module):
    def __init__(self, drawn: Program) -> None:
        super().__init__()
        self.function = drawn.function

    def forward(self, *x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.function(*x)


def excess(drawn: Program, dtype: torch.dtype = torch.float32) -> float:
    """The error of a program's kernels relative to the largest value, if it is beyond what rounding makes; else 0.

    Raises:
        NotEmulated: the engine has other kernels than the emulator runs.
    """
    args, compiled = _compiled(drawn, dtype, "cpu")
    with emulated():
        run = compiled.module("reference")
    return _beyond(drawn, args, run(*args), drawn.function(*args), compiled.module("reference")(*args))


def excess_on_gpu(drawn: Program, dtype: torch.dtype) -> float:
    """`excess` of the engine on this machine's GPU."""
    args, compiled = _compiled(drawn, dtype, "cuda")
    return _beyond(drawn, args, compiled.module("tensorrt")(*args), drawn.function(*args))


Results: TypeAlias = tuple[torch.Tensor, ...]


def _compiled(drawn: Program, dtype: torch.dtype, device: str) -> tuple[Results, pipeline.Compiled]:
    """Inputs, and the program compiled with them."""
    capabilities = ("8.0",) if device == "cpu" else ()
    compile = pipeline.default(require_full_compilation=True, min_block_size=1, compute_capabilities=capabilities)
    generator = torch.Generator().manual_seed(0)
    args = tuple(torch.randn(sizes, generator=generator).to(device, dtype) for sizes in drawn.sizes)
    return args, compile(_Model(drawn).eval(), args=args)


def _beyond(drawn: Program, args: Results, found: Results, *others: Results) -> float:
    """The largest error that is more than a floor and 10 times those of the others."""
    exact = drawn.function(*(x.double() for x in args))
    ours, *theirs = (_errors(values, exact) for values in (found, *others))
    floor = FLOORS[args[0].dtype] + (TF32 if args[0].is_cuda else 0)
    return max((a for a, *b in zip(ours, *theirs, strict=True) if a > floor + 10 * max(b)), default=0.0)


def _errors(values: Results, exact: Results) -> list[float]:
    return [_error(a.double(), b) for a, b in zip(values, exact, strict=True) if b.numel()]


def _error(value: torch.Tensor, exact: torch.Tensor) -> float:
    scale = float(exact.abs().nan_to_num(0, 0, 0).max()) + 1e-6
    return float(torch.where(value == exact, 0, (value - exact).abs()).nan_to_num(9, 9, 9).max()) / scale


def checked(seed: int, dtype: torch.dtype) -> tuple[str, str]:
    """What became of a seed, and the program with its error if it is wrong."""
    drawn = program(seed)
    try:
        error = excess(drawn, dtype)
    except NotEmulated as why:
        return "not emulated", str(why)
    return ("wrong", f"{seed}: {error:.1e}\n{drawn.sizes}\n{drawn.text}") if error else ("right", "")


def _of_its_own() -> None:
    """A process of the pool: quiet, with one thread."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def main(arguments: list[str] | None = None) -> int:
    """Runs the programs; the exit code is 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", help="FIRST:LAST, the last left out")
    parser.add_argument("--dtype", default="float32", choices=[str(dtype).partition(".")[2] for dtype in FLOORS])
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=context, initializer=_of_its_own) as pool:
        seeds = range(*map(int, given.seeds.split(":")))
        for kind, text in pool.map(checked, seeds, [getattr(torch, given.dtype)] * len(seeds)):
            counts[kind] += 1
            if kind == "wrong":
                print(text, flush=True)
    print(f"{given.seeds}: {dict(counts)}")
    return int(bool(counts["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
