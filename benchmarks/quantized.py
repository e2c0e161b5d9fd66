"""``python -m benchmarks.quantized``: what engines of quantized models hold and fuse, and on a GPU what a call takes.

ViT, BERT and a Llama-like decoder with random weights, quantized here, by NVIDIA ModelOpt and by torchao where they are
installed, are built for 8.9 and for 12.0. Without a GPU the plans are all there is: nothing is said of speed. On one,
engines are for that GPU and calls are timed, beside those of the same model not quantized. Processes compile side by
side and measure one after the other. It needs a TensorRT that builds quantized networks (RTX 1.6.1 or newer).
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from attrs import evolve

import pipeline
from benchmarks.environment import collect
from benchmarks.quantized_models import MODELS, PLAIN, WAYS, Made, made
from benchmarks.turns import in_turns, side_by_side, turn
from pipeline.trt import CAPABILITIES

PLANS: Final = ("8.9", "12.0")
REST: Final = 0.2
"""Seconds before a measurement: these engines have no shapes that kernels would be compiled for in the background."""


def error(made: Any, ready: Made) -> float:
    """How far a result is from eager's numbers, relative to them: those of the library's quantized model, or of the
    model in floats where we quantize it."""
    wanted = ready.model(*ready.args).float()
    return float((made.float() - wanted).norm() / wanted.norm())


def file_bytes(compiled: pipeline.Compiled) -> int:
    """The size of the program's file, with its engines and without what only a refit or a run without a GPU needs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.trtp"
        compiled.save(path, weights="none")
        return path.stat().st_size


def row(name: str, way: str, capability: str, options: argparse.Namespace) -> dict[str, Any]:
    """What became of one model, quantized in one way; an empty capability stands for the GPU at hand."""
    dtype = getattr(torch, options.dtype)
    targets = (capability,) if capability else ()
    ready = made(name, way, options.layers, options.width, dtype, compute_capabilities=targets)
    if torch.cuda.is_available():  # before it is compiled: torch moves no quantized tensors of torchao's afterwards
        ready = evolve(ready, model=ready.model.cuda(), args=tuple(a.cuda() for a in ready.args))
    compiled = ready.compile(ready.model, args=ready.args)
    weights = [pair for pair in compiled.quantization if pair.of == "weight"]
    pairs = [pair for pair in compiled.quantization if pair.of == "activation"]
    return {
        "model": name,
        "way": way,
        "capability": capability or "here",
        "layers": options.layers,
        "engines": len(compiled.engines),
        "fallbacks": len(compiled.coverage.fallback),
        "engine_bytes": sum(engine.nbytes for engine in compiled.engines),
        "file_bytes": file_bytes(compiled),
        "expected_bytes": ready.expected,
        "weights": len(weights),
        "fused": sum(bool(pair.fused) for pair in weights),
        "pairs": len(pairs),
        "pairs_fused": sum(bool(pair.fused) for pair in pairs),
        "not_fused": sorted({kind(pair) for pair in compiled.quantization if not pair.fused}),
        **called(compiled, ready, way, options),
    }


def kind(pair: Any) -> str:
    """A pair that is not fused, without its layer and engine."""
    return f"{pair.type} {pair.of}: {re.sub(r'__myl_[0-9A-Za-z_]+', 'kernel', pair.why)}"


def called(compiled: pipeline.Compiled, ready: Made, way: str, options: argparse.Namespace) -> dict[str, Any]:
    """The error of a call; on a GPU the milliseconds of one, by a replayed graph. Those of the model in eager where it
    is not the one in floats, which has a row of its own, and no other process keeps the host busy."""
    with torch.no_grad():
        if not torch.cuda.is_available():
            return {"relative_error": error(compiled(*ready.args), ready)} if options.errors else {}
        with torch.cuda.stream(torch.cuda.Stream()):
            call = partial(compiled.module(executor="tensorrt", cuda_graphs=True), *ready.args)
            found = {"relative_error": error(call(), ready)}
            calls = {"gpu_ms": call}
            if options.processes == 1 and (way == PLAIN or WAYS[way].stage is None):
                calls["eager_ms"] = partial(ready.model, *ready.args)
            with turn():
                times = in_turns(calls, rest=REST)
    return {**found, **{name: taken["gpu_ms"] for name, taken in times.items()}}


def attempted(name: str, way: str, capability: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The row of a model, way and compute capability; one that fails says why."""
    try:
        return [row(name, way, capability, options)]
    except Exception as problem:  # what a library raises as well: one row fails, not all
        failed = {"model": name, "way": way, "capability": capability or "here"}
        return [failed | {"failed": f"{type(problem).__name__}: {str(problem)[:300]}"}]


def main(argv: Sequence[str] | None = None) -> int:
    """Builds, measures, prints and saves."""
    parser = argparse.ArgumentParser(description="what engines of quantized models hold and fuse")
    here = [name for name, way in WAYS.items() if way.is_here]
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--ways", nargs="+", default=here, choices=list(WAYS))
    parser.add_argument("--capabilities", nargs="+", default=[""] if torch.cuda.is_available() else list(PLANS))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--no-errors", dest="errors", action="store_false", help="do not run the models beside eager")
    parser.add_argument("--processes", type=int, default=8 if torch.cuda.is_available() else 1)
    parser.add_argument("--add", action="store_true", help="keep the rows of an earlier run that this one has not")
    options = parser.parse_args(argv)
    gpu = torch.cuda.get_device_name().lower().replace(" ", "-") + "-" if torch.cuda.is_available() else ""
    name = f"quantized-{gpu}{CAPABILITIES.flavour}-{CAPABILITIES.version}"
    cases = list(itertools.product(options.models, options.ways, options.capabilities, [options]))
    with side_by_side(options.processes) as pool:
        parts = pool.map(attempted, *zip(*cases, strict=True))
        collect(name, "quantized", parts, of=("model", "way", "capability"), add=options.add)
    return 0


if __name__ == "__main__":
    sys.exit(main())
