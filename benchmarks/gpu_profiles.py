"""``python -m benchmarks.gpu_profiles``: one engine with three profiles on this GPU, beside engines of one shape each.

BERT and ViT in float16 with CUDA graphs, at three shapes: an engine for each; one for the whole range; one with three
profiles, each a range or just the shape itself; and an engine for each profile, which share their weights. Every way
has a process of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from attrs import evolve, frozen
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import pipeline
from benchmarks import together
from benchmarks.environment import Row, collect
from benchmarks.gpu import error, gpu_name
from benchmarks.turns import WARM_UP, in_turns
from examples.models import Case, full

Sizes: TypeAlias = Mapping[str, int]
Span: TypeAlias = Mapping[str, tuple[int, int]]
"""The least and the greatest of each dim, by its name."""


@frozen
class Shapes:
    """Three shapes of a model, and for each the range of a profile that it is the greatest of."""

    sizes: tuple[Sizes, ...]
    spans: tuple[Span, ...]

    @property
    def points(self) -> tuple[Span, ...]:
        """Ranges of one shape each."""
        return tuple({name: (size, size) for name, size in sizes.items()} for sizes in self.sizes)


MODELS: Mapping[str, Shapes] = {
    "bert": Shapes(
        ({"batch": 1, "sequence": 32}, {"batch": 4, "sequence": 128}, {"batch": 8, "sequence": 128}),
        (
            {"batch": (1, 1), "sequence": (2, 32)},
            {"batch": (2, 4), "sequence": (2, 128)},
            {"batch": (5, 8), "sequence": (2, 128)},
        ),
    ),
    "vit": Shapes(
        ({"batch": 1}, {"batch": 4}, {"batch": 8}),
        ({"batch": (1, 1)}, {"batch": (2, 4)}, {"batch": (5, 8)}),
    ),
}


def dims(case: Case, span: Span) -> dict[str, Any]:
    """A profile of the case's inputs: a number where a dim has one size."""

    def of(name: str) -> Any:
        low, high = span[name]
        return low if low == high else Dim(name, min=low, max=high)

    made = {name: of(name) for name in span}
    given = case.dynamic_shapes or {}
    return {key: {axis: made[dim.__name__] for axis, dim in each.items()} for key, each in given.items()}


def compiled(
    case: Case, spans: Sequence[Span] | None, sizes: Sizes, *, apart: bool = False, **settings: Any
) -> pipeline.Compiled:
    """The case for these profiles, ``apart`` in engines of their own; for one shape if there are none."""
    compile = pipeline.default(require_full_compilation=True, cuda_graphs=True, **settings)
    for stage in (pipeline.engine_per_profile(), pipeline.shared_weights()) if apart else ():
        compile = compile.insert(stage, after="partition")
    kwargs = {k: v.to(case.kwargs[k].device) for k, v in case.inputs(**sizes).items()}
    named = {"profiles": [dims(case, span) for span in spans]} if spans and len(spans) > 1 else {}
    if spans and not named:
        named = {"dynamic_shapes": dims(case, spans[0])}
    result: pipeline.Compiled = compile(case.model, args=(), kwargs=kwargs, **named)
    return result


def whole(spans: Sequence[Span]) -> Span:
    """The range over several."""
    return {n: (min(span[n][0] for span in spans), max(span[n][1] for span in spans)) for n in spans[0]}


def engines(case: Case, shapes: Shapes, way: str) -> list[pipeline.Compiled]:
    """What a way compiles: one program for all shapes, or one for each."""
    if way == "an engine each":
        return [compiled(case, None, sizes) for sizes in shapes.sizes]
    spans = {"one range": [whole(shapes.spans)], "three ranges": shapes.spans, "three shapes": shapes.points}
    form, _, more = way.partition(", ")
    settings = {"kernel_specialization": more} if more == LAZY else {}
    return [compiled(case, spans[form], shapes.sizes[-1], apart=more == APART, **settings)]


LAZY, APART = "lazy", "an engine for each"
WAYS = (
    "an engine each",
    "one range",
    "three ranges",
    "three shapes",
    f"three ranges, {LAZY}",
    f"three ranges, {APART}",
    f"three shapes, {APART}",
)


def ready(way: str, model: str) -> Callable[[], list[Row]]:
    """Get a way ready at all shapes, and give what measures them."""
    case, exact = (full(model, dtype) for dtype in (torch.float16, torch.float32))
    case, exact = (evolve(each, model=each.model.cuda()) for each in (case, exact))
    return measuring(case, exact, MODELS[model], way, {"model": model, "way": way})


def measuring(
    case: Case, exact: Case, shapes: Shapes, way: str, named: Row, device: str = "cuda"
) -> Callable[[], list[Row]]:
    """The same of a case on a device, whose results ``exact`` gives in float32."""
    case = evolve(case, kwargs={k: v.to(device) for k, v in case.kwargs.items()})
    began = time.perf_counter()
    programs = engines(case, shapes, way)
    seconds = time.perf_counter() - began
    modules = [program.module("tensorrt" if device == "cuda" else "reference") for program in programs]
    calls: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for index, sizes in enumerate(shapes.sizes):
        given = {k: v.to(device) for k, v in case.inputs(**sizes).items()}
        name, call = " x ".join(map(str, sizes.values())), partial(modules[index % len(modules)], **given)
        wide = {k: v.float() if v.is_floating_point() else v for k, v in given.items()}
        with torch.no_grad():
            expected = [leaf.float() for leaf in tree_leaves(exact.model(**wide))]
            results = [call() for _ in range(WARM_UP)]
        calls[name], errors[name] = call, error(results[-1], expected)
    plans = sum(len(engine.plan) for program in programs for engine in program.engines)
    facts = {"compile_seconds": round(seconds, 1), "plan_mb": round(plans / 1e6, 1), "relative_error": errors}
    return lambda: [{**named, **facts, "times": in_turns(calls)}]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the options ask for; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--together", type=int, default=6, help="so many ways get ready side by side")
    parser.add_argument("--add", action="store_true", help="keep the rows of an earlier run")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks.gpu_profiles: there is no GPU here", file=sys.stderr)
        return 2
    subjects = [(way, model) for model in options.models for way in options.ways]
    found = together.measured(subjects, ready, options.together)
    rows = ([{"model": m, "way": w, "failed": r}] if isinstance(r, str) else r for (w, m), r in found)
    collect(f"gpu-profiles-{gpu_name()}", "profiles", rows, of=("model", "way"), add=options.add)
    return 0


if __name__ == "__main__":
    sys.exit(main())
