"""``python -m benchmarks.gpu_layers``: where the milliseconds of a call go on this GPU, by module, node and layer.

The layers' sum beside the engine's own time without CUDA graphs tells whether the profile is to be believed: they are
within 10 % of each other, and what belongs to no node is named.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from attrs import asdict

import pipeline
from benchmarks.environment import Row
from benchmarks.gpu_runs import by_model
from examples.models import full
from pipeline.records.profile import Profile

MODELS = ("resnet50", "vit", "bert")
DEAREST = 20


def profiled(model: str, batch: int) -> Profile:
    """The profile of a model in float16, compiled for this batch."""
    case = full(model, torch.float16)
    inputs = {name: value.cuda() for name, value in case.inputs(batch=batch).items()}
    return pipeline.default()(case.model.cuda(), kwargs=inputs).profile(**inputs)


def row(model: str, batch: int, profile: Profile) -> dict[str, Any]:
    """What is kept of a profile."""
    layers = sorted((layer for s in profile.segments for layer in s.layers), key=lambda layer: -layer.milliseconds)
    return {
        "model": model,
        "batch": batch,
        "call_ms": profile.call,
        "graph_ms": profile.graph,
        "engine_ms": sum(segment.milliseconds for segment in profile.segments),
        "layers_ms": profile.layers_sum,
        "timed": [segment.timed for segment in profile.segments],
        "between_ms": sum(layer.milliseconds for layer in profile.unassigned if layer.by == "between"),
        "unassigned_ms": sum(layer.milliseconds for layer in profile.unassigned),
        "unassigned": [layer.name for layer in profile.unassigned],
        "modules": profile.by_module(4),
        "dearest": [asdict(layer) for layer in layers[:DEAREST]],
    }


def measured(model: str, batch: int) -> list[Row]:
    """The row of a model, whose profile is printed."""
    profile = profiled(model, batch)
    print(f"{model}, batch {batch}\n{profile}\n", flush=True)
    return [row(model, batch, profile)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, saves and prints; 1 where a sum of layers is not the engine's time, 2 where there is no GPU."""
    rows = by_model("gpu_layers", "where the time of a call goes on this GPU", MODELS, measured, argv)
    if rows is None:
        return 2
    off = [r["model"] for r in rows if abs(r["layers_ms"] - r["engine_ms"]) > 0.1 * r["engine_ms"]]
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
