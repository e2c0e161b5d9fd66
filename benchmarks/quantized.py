"""``python -m benchmarks.quantized``: what engines of quantized models hold and fuse, and on a GPU what a call takes.

ViT, BERT and a Llama-like decoder with random weights, quantized here, by NVIDIA ModelOpt and by torchao where they are
installed, are built for 8.9 and for 12.0. Without a GPU the plans are all there is: nothing is said of speed. On one,
engines are for that GPU and calls are timed, beside those of the same model not quantized. It needs a TensorRT that
builds quantized networks (RTX 1.6.1 or newer).
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch

import pipeline
from benchmarks.environment import collect
from benchmarks.quantized_models import MODELS, WAYS, Made, made
from pipeline.trt import CAPABILITIES

PLANS: Final = ("8.9", "12.0")
CALLS: Final = 50


def error(compiled: pipeline.Compiled, ready: Made) -> float:
    """How far the program is from eager's numbers, relative to them: those of the library's quantized model, or of the
    model in floats where we quantize it."""
    with torch.no_grad():
        wanted = ready.model(*ready.args)
    return float((compiled(*ready.args).float() - wanted.float()).norm() / wanted.float().norm())


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
    compiled = ready.compile(ready.model, args=ready.args)
    weights = [pair for pair in compiled.quantization if pair.of == "weight"]
    pairs = [pair for pair in compiled.quantization if pair.of == "activation"]
    return {
        "model": name,
        "way": way,
        "capability": capability or "here",
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
        **({"relative_error": error(compiled, ready)} if options.errors else {}),
        **(timed(compiled, ready) if torch.cuda.is_available() else {}),
    }


def kind(pair: Any) -> str:
    """A pair that is not fused, without its layer and engine."""
    return f"{pair.type} {pair.of}: {re.sub(r'__myl_[0-9A-Za-z_]+', 'kernel', pair.why)}"


def timed(compiled: pipeline.Compiled, ready: Made) -> dict[str, Any]:
    """Milliseconds of a call on this GPU, by a replayed graph; and of the same model in eager."""
    args = tuple(a.cuda() for a in ready.args)
    module, model, found = compiled.module(cuda_graphs=True), ready.model.cuda(), {}
    for name, call in (("gpu_ms", module), ("eager_ms", model)):
        taken = []
        for _ in range(CALLS):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            with torch.no_grad():
                call(*args)
            torch.cuda.synchronize()
            taken.append(1e3 * (time.perf_counter() - begun))
        found[name] = statistics.median(taken[CALLS // 5 :])
    return found


def rows(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """A row for each model, way and compute capability; one that fails says why."""
    for name in options.models:
        for way in options.ways:
            for capability in options.capabilities:
                try:
                    yield [row(name, way, capability, options)]
                except (pipeline.PipelineError, RuntimeError) as problem:
                    failed = {"model": name, "way": way, "capability": capability or "here"}
                    yield [failed | {"failed": f"{type(problem).__name__}: {str(problem)[:300]}"}]


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
    parser.add_argument("--add", action="store_true", help="keep the rows of an earlier run that this one has not")
    options = parser.parse_args(argv)
    gpu = torch.cuda.get_device_name().lower().replace(" ", "-") + "-" if torch.cuda.is_available() else ""
    name = f"quantized-{gpu}{CAPABILITIES.flavour}-{CAPABILITIES.version}"
    collect(name, "quantized", rows(options), of=("model", "way", "capability"), add=options.add)
    return 0


if __name__ == "__main__":
    sys.exit(main())
