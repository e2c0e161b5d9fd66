"""``python -m benchmarks.zoo [text|vision|audio|…] [NAME ...] [--build]``: every architecture of ``zoo_text``,
``zoo_vision`` and the others compiled, and run on the reference executor beside eager PyTorch and float64.

Writes ``benchmarks/results/zoo_text.json`` and so on, from which ``benchmarks.tables`` makes docs/models.md; with
names, only their rows are made anew. ``--build`` builds the engines as well.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import logging
import math
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import torch
from torch.utils._pytree import tree_leaves, tree_map

import pipeline
from benchmarks import environment
from benchmarks.architectures import Architecture
from examples.models import Case
from pipeline.errors import CaptureError, DecisionError, ShapeError
from pipeline.stages.unbuilt import unbuilt
from pipeline.testing.compare import describe_outputs_difference

TABLES = ("text", "vision", "dense", "detection", "audio", "multimodal", "chat", "series", "diffusion")


def architectures(table: str) -> tuple[Architecture, ...]:
    """Those of ``benchmarks/zoo_<table>.py``."""
    found: tuple[Architecture, ...] = importlib.import_module(f"benchmarks.zoo_{table}").ARCHITECTURES
    return found


def row(architecture: Architecture, dtype: str = "float32", *, build: bool = False) -> dict[str, Any]:
    """What compiling an architecture gives: a row of the table.

    ``refused``: why torch.export does not take it; ``failed``: what went wrong of ours; else engines and errors.
    """
    found: dict[str, Any] = {"name": architecture.name, "task": architecture.task, "dtype": dtype}
    try:
        case = architecture.case(getattr(torch, dtype))
        found["model"] = type(case.model).__name__
        with suppress(Exception), torch.no_grad():
            case.model(**fresh(case.kwargs))  # some write to their weights in their first call
        program, case = captured(case)
    except CaptureError as error:
        return {**found, "refused": first_line(error)}
    found["dynamic"] = sorted(_names(case.dynamic_shapes))
    try:
        return {**found, **compiled(architecture, case, program, build)}
    except Exception as error:
        logging.getLogger(__name__).debug("%s", traceback.format_exc())
        return {**found, "failed": f"{type(error).__name__}: {first_line(error)}"}


def known_dims(architecture: Architecture) -> frozenset[str] | None:
    """The dims that vary in the architecture's row of the results; None if it has none."""
    return _recorded_dims().get((architecture.name, architecture.task))


@functools.cache
def _recorded_dims() -> dict[tuple[str, str], frozenset[str]]:
    paths = filter(Path.exists, (environment.RESULTS / f"zoo_{table}.json" for table in TABLES))
    rows = [row for path in paths for row in json.loads(path.read_text(encoding="utf-8"))["zoo"]]
    return {(row["name"], row["task"]): frozenset(row["dynamic"]) for row in rows if "dynamic" in row}


def captured(case: Case, known: AbstractSet[str] | None = None) -> tuple[pipeline.Program, Case]:
    """The program with as many dynamic dims as torch.export allows, and the case with these. ``known`` are the dims to
    try first, which saves the tries that fail."""
    names = _names(case.dynamic_shapes)
    if known is not None and known < names:
        with suppress(CaptureError):
            return _captured(case, known)
    try:
        return _captured(case, names)
    except CaptureError:
        if not names:
            raise
    fixed = _captured(case, frozenset())  # what cannot be captured in one size cannot be in several
    for keep in (names & {"batch"}, names - {"batch"}):
        with suppress(CaptureError):
            if keep and keep != names:
                return _captured(case, keep)
    return fixed


def _captured(case: Case, keep: AbstractSet[str]) -> tuple[pipeline.Program, Case]:
    less = attrs.evolve(case, dynamic_shapes=_kept(case.dynamic_shapes, keep))
    settings = pipeline.CompilationSettings(decisions=less.decisions)
    return pipeline.capture(less.model, (), less.example, less.dynamic_shapes, settings=settings), less


def _names(shapes: Any) -> set[str]:
    return {dim.__name__ for dim in tree_leaves(shapes) if dim is not None}


def _kept(shapes: Any, names: AbstractSet[str]) -> Any:
    """The dynamic shapes without the dims of other names."""
    if shapes is None or not names:
        return None

    def only(dims: Any) -> Any:
        return {i: d for i, d in dims.items() if d is not None and d.__name__ in names} or None

    return tree_map(lambda dims: only(dims) if dims else None, shapes, is_leaf=_is_dims)


def _is_dims(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, int) for key in value)


def compiled(architecture: Architecture, case: Case, program: pipeline.Program, build: bool = False) -> dict[str, Any]:
    """What a program gives: engines, fallbacks, errors."""
    taken: dict[str, float] = {}
    compile = pipeline.default() if build else pipeline.default().replace("build", unbuilt)
    compiled: pipeline.Compiled = compile.observed_by(_clock(taken))(program)
    nodes = compiled.coverage.total
    own = sum(seconds for stage, seconds in taken.items() if stage != "build")
    reasons = Counter((str(f.target), f.reason) for f in compiled.coverage.fallback)
    return {
        "nodes": nodes,
        "engines": len(compiled.partitioned.engine_segments),
        "segments": len(compiled.partitioned.segments),
        "built": build,
        "fallbacks": [{"target": t, "reason": r, "nodes": n} for (t, r), n in reasons.items()],
        "milliseconds_per_node": round(1e3 * own / max(nodes, 1), 2),
        **_agreement(architecture, case, compiled),
    }


def _clock(taken: dict[str, float]) -> Any:
    """An observer that writes down the processor time of each stage."""
    started: dict[str, float] = {}

    def note(event: pipeline.Event) -> None:
        if event.kind == "started":
            started[event.stage] = time.process_time()
        elif event.kind == "finished":
            taken[event.stage] = time.process_time() - started[event.stage]

    return note


def _agreement(architecture: Architecture, case: Case, compiled: pipeline.Compiled) -> dict[str, Any]:
    """Errors relative to the largest of an output, ours and eager's own, of the worst output; ``wrong`` says how.

    ``otherwise`` counts the calls that take another branch than the example, where data decides. Where there is no
    float64 to compare with, ours is relative to eager's result, and eager's own is not known.
    """
    module, exact = compiled.module("reference"), _double(architecture.case(torch.float32).model)
    worst, wrong, tried, known, otherwise = (0.0, 0.0), "", 0, True, 0
    for kwargs in (case.kwargs, *(case.inputs(**sizes) for sizes in architecture.sizes)):
        kwargs = kwargs if case.decisions == "example" else padded(kwargs)
        try:
            ours = module(**fresh(kwargs))
        except ShapeError:
            continue
        except DecisionError:
            otherwise += 1
            continue
        tried += 1
        with torch.no_grad():
            theirs, best = case.model(**fresh(kwargs)), exactly(exact, case, kwargs)
        if best is not None:
            best = tree_map(defined, best, theirs)
        known = known and best is not None
        wrong = wrong or describe_outputs_difference("output", theirs, best, ours, compiled.program, "reference")
        worst = max(worst, *_errors(ours, theirs, best), key=_excess)
    found = {"sizes": tried, "error": worst[0], "eager_error": worst[1] if known else None}
    found |= {"otherwise": otherwise} if otherwise else {}
    return {**found, "wrong": wrong} if wrong else found


def defined(best: Any, theirs: Any) -> Any:
    """float64's result, or eager's where that is a number and float64's is none: eager's attention in float64 has
    another kernel, which gives NaN for a query that may look at nothing."""
    if isinstance(best, torch.Tensor) and best.is_floating_point() and best.shape == theirs.shape:
        return torch.where(best.isnan(), theirs.double(), best)
    return best


def _excess(errors: tuple[float, float]) -> float:
    return errors[0] / max(errors[1], 1e-9)


def padded(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same inputs, the last row's last third being padding if there is an attention mask."""
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return kwargs
    mask = mask.clone()
    mask[-1, mask.shape[1] - mask.shape[1] // 3 :] = 0
    return {**kwargs, "attention_mask": mask}


def fresh(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Copies: a model may write to its inputs."""
    copies: dict[str, Any] = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, kwargs)
    return copies


def _double(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return value.double()
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def exactly(exact: torch.nn.Module, case: Case, kwargs: dict[str, Any]) -> Any:
    """The outputs in float64; None where the model does not take it, or its weights were rounded to another dtype."""
    exact.load_state_dict(case.model.state_dict())
    try:
        return exact(**tree_map(_double, fresh(kwargs)))
    except (RuntimeError, ValueError, TypeError):
        return None


def _errors(ours: Any, theirs: Any, best: Any) -> Iterator[tuple[float, float]]:
    doubles = tree_leaves(best if best is not None else theirs)
    for a, b, exact in zip(tree_leaves(ours), tree_leaves(theirs), doubles, strict=True):
        if isinstance(a, torch.Tensor) and a.is_floating_point() and a.numel():
            scale = max(float(exact.double().nan_to_num(0.0, 0.0, 0.0).abs().max()), 1e-30)
            yield apart(a, exact) / scale, apart(b, exact) / scale


def apart(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference; infinite where one is NaN or infinite and the other is not so."""
    value, exact = value.double(), exact.double()
    same = (value == exact) | (value.isnan() & exact.isnan())
    return float((value - exact).abs().masked_fill(same, 0.0).nan_to_num(math.inf, math.inf).max())


def first_line(error: BaseException) -> str:
    """The first line of what an error says that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def keep(table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Put rows into the table's results, in the place of those of the same name and dtype."""
    path = environment.RESULTS / f"zoo_{table}.json"
    old = json.loads(path.read_text(encoding="utf-8"))["zoo"] if path.exists() else []
    found = {(r["task"], r["name"], r["dtype"]): r for r in (*old, *rows)}
    known = {(a.task, a.name, dtype) for a in architectures(table) for dtype in a.dtypes}
    libraries = sorted({a.library for a in architectures(table)})
    rows = [found[key] for key in sorted(known & found.keys())]
    environment.save(path.stem, {"table": table, "zoo": rows}, libraries)


def said(found: dict[str, Any]) -> str:
    """A row in a line."""
    head = f"{found['name']} {found['dtype']}"
    for key in ("refused", "failed", "wrong"):
        if key in found:
            return f"{head}: {key}: {found[key]}"
    fallbacks = sum(f["nodes"] for f in found["fallbacks"])
    counts = f"{found['nodes']} nodes, {found['engines']} engines, {fallbacks} fallbacks"
    dims = ", ".join(found["dynamic"]) or "nothing"
    own = "unknown" if found["eager_error"] is None else f"{found['eager_error']:.1e}"
    errors = f"error {found['error']:.1e} (eager {own})"
    return f"{head}: {counts}; {dims} dynamic; {errors}; {found['milliseconds_per_node']} ms a node"


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles what was asked for and writes the results; 1 if something of ours failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join(TABLES)}, or names of architectures; everything if none")
    parser.add_argument("--build", action="store_true", help="build the engines too")
    options = parser.parse_args(argv)
    tables = [t for t in TABLES if t in options.names] or TABLES
    names = set(options.names) - {*TABLES}
    faults = 0
    for table in tables:
        for each in architectures(table):
            for dtype in each.dtypes if not names or each.name in names else ():
                found = row(each, dtype, build=options.build)
                print(said(found), flush=True)
                keep(table, [found])
                faults += "failed" in found or "wrong" in found
    return 1 if faults else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
