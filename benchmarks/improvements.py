"""``python -m benchmarks.improvements``: what each pass of the stage ``improve`` gains on this GPU.

For each model: the engine without any pass, with all, and with all but one, for each pass that changes the network;
all driven by hand with a CUDA graph, measured in turns in one process. Models are compiled in processes side
by side, and measured one after the other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

import pipeline
from benchmarks.environment import collect
from benchmarks.gpu import MODELS, Plain, gpu_name
from benchmarks.methods import driven
from benchmarks.turns import in_turns, side_by_side, turn
from examples.models import full
from pipeline.improvements import PASSES
from pipeline.stages.improve import Improve

CASES = (
    *(*MODELS, "swin", "resnet50 at 8", "vit at 8", "bert at 8", "resnet50 refittable"),
    *("vit spelled out", "bert spelled out", "gpt2 spelled out"),
)
"""Models at batch 1 or another, some with weights that can be refitted, or with attention as transformers' ``"eager"``
spells it out."""


def variants(model: torch.nn.Module, inputs: dict[str, torch.Tensor], **settings: Any) -> dict[str, pipeline.Compiled]:
    """Compiled programs by name: ``none``, ``all`` and ``all but PASS``; only those whose networks differ."""
    exported = torch.export.export(model, (), inputs, strict=False)
    names = [each.name for each in PASSES]
    chosen = {"none": [], "all": names, **{f"all but {n}": [m for m in names if m != n] for n in names}}
    found: dict[str, pipeline.Compiled] = {}
    for name, passes in chosen.items():
        compile = _with(passes, **settings)
        digest = compile.until("convert")(exported).networks[0].digest
        if name != "all" and any(c.networks[0].digest == digest for n, c in found.items() if n != "none"):
            continue
        found[name] = compile(exported)
    return found


def _with(passes: Iterable[str], **settings: Any) -> Any:
    return pipeline.default(require_full_compilation=True, **settings).replace("improve", Improve(passes=passes))


def chosen(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor], dict[str, Any]]:
    """A case by name: the model in float16, its inputs, and settings."""
    kind, _, special = name.partition(" ")
    case = full(kind, torch.float16)
    if special == "spelled out":
        case.model.set_attn_implementation("eager")
    batch = int(special.removeprefix("at ")) if special.startswith("at ") else 1
    return Plain(case.model).eval(), case.inputs(batch=batch), {"immutable_weights": special != "refittable"}


def measured(name: str) -> list[dict[str, Any]]:
    """Rows of a case: each variant with its layers, milliseconds, and the ratio of what it lacks to ``all``."""
    model, given, settings = chosen(name)
    inputs = {key: value.cuda() for key, value in given.items()}
    compiled = variants(model.cuda(), inputs, **settings)
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        calls = {key: driven(each, inputs, graph=True) for key, each in compiled.items()}
        with turn():
            times = in_turns(calls, rest=0.5)
    return [
        {
            "model": name,
            "dtype": "float16",
            "passes": key,
            "layers": len(compiled[key].networks[0].layers),
            "gpu_ms": times[key]["gpu_ms"],
            "over_all": round(times[key]["gpu_ms"] / times["all"]["gpu_ms"], 3),
        }
        for key in compiled
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, saves and prints; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description="what each pass gains on this GPU")
    parser.add_argument("--models", nargs="+", default=CASES, help="such as vit, or 'vit at 8' for another batch")
    parser.add_argument("--add", action="store_true", help="keep what other models gave before")
    parser.add_argument("--processes", type=int, default=5)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks.improvements: there is no GPU here", file=sys.stderr)
        return 2
    with side_by_side(options.processes) as pool:
        parts = pool.map(measured, options.models)
        collect(f"improvements-{gpu_name()}", "gains", parts, of=["model"], add=options.add)
    return 0


if __name__ == "__main__":
    sys.exit(main())
