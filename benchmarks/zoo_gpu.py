"""An architecture of the zoo on a GPU as users have it: the module there before it is captured, engines beside eager.

``tests/gpu/test_zoo_gpu.py`` runs every architecture in every dtype; ``benchmarks.gpu_tests`` writes the rows down.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch.utils._pytree import tree_leaves, tree_map

import pipeline
from benchmarks import environment, zoo
from benchmarks.architectures import Architecture
from examples.models import Case
from pipeline.compiled import Compiled
from pipeline.errors import CaptureError, DecisionError, ExecutionError, ShapeError
from pipeline.verification.bounds import MULTIPLE, Bound
from pipeline.verification.eager import use_tf32

IEEE = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
FLOOR = {
    dtype: Bound(getattr(torch, dtype), "ieee" if IEEE else "tf32").floor
    for dtype in ("float32", "float16", "bfloat16")
}
"""What eager's error may be too lucky for, relative to the largest value."""


def row(architecture: Architecture, dtype: str) -> dict[str, Any]:
    """A row of the table: engines and errors, at the example's sizes and another.

    ``eager``: why the library or eager fails on this GPU; ``refused``: why torch.export does not take the model, also
    with the example's branches, which ``decisions`` says were taken;
    ``failed``: an error of ours; ``wrong``: the output that is beyond the bound. `pipeline.verify` then has the word:
    ``undecided`` elements are decided by rounding, ``healed`` nodes run in another form, after which it is right, and
    ``exported`` says that torch.export gave another program than the module.
    """
    found: dict[str, Any] = {"name": architecture.name, "task": architecture.task, "dtype": dtype}
    watch = Watch()
    with use_tf32(not IEEE):
        try:
            case = architecture.case(getattr(torch, dtype))
            case = attrs.evolve(case, model=case.model.cuda(), kwargs=_moved(case.kwargs))
            _eager(case.model, case.kwargs)
            watch("make")
        except Exception as error:
            return {**found, "eager": zoo.first_line(error)}
        try:
            try:
                return {**found, **_compiled(architecture, case, watch), "seconds": watch.seconds}
            except CaptureError:  # a branch that only halves have, as in BART and its kin
                case = attrs.evolve(case, decisions="example")
                return {**found, "decisions": "example", **_compiled(architecture, case, watch)}
        except CaptureError as error:
            return {**found, "refused": zoo.first_line(error)}
        except Exception as error:
            logging.getLogger(__name__).exception("%s in %s", architecture.name, dtype)
            return {**found, "failed": f"{type(error).__name__}: {zoo.first_line(error)}"}


@functools.cache
def taken_before() -> frozenset[tuple[str, str]]:
    """The task and name of each architecture that torch.export took on a GPU, in this version of torch and of
    transformers, as the results have it; without those that are refused on a CPU by now."""
    here = environment.environment()["versions"]
    files = [json.loads(path.read_text(encoding="utf-8")) for path in environment.RESULTS.glob("zoo_*.json")]
    rows = [row for each in files for row in each.get("zoo", ())]
    refused = {(row["task"], row["name"]) for row in rows if "refused" in row}
    on_gpu = (each for each in files if "zoo_gpu" in each)
    alike = (each for each in on_gpu if all(each["versions"][name] == here[name] for name in ("torch", "transformers")))
    taken = (row for each in alike for row in each["zoo_gpu"] if not {"refused", "failed", "eager"} & row.keys())
    return frozenset((row["task"], row["name"]) for row in taken) - refused


class Watch:
    """Seconds of the parts of a row, each from the end of the one before."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def __call__(self, part: str) -> None:
        """A part has ended."""
        before, self._at = self._at, time.perf_counter()
        self.seconds[part] = round(self.seconds.get(part, 0.0) + self._at - before, 2)


def _compiled(architecture: Architecture, case: Case, watch: Watch) -> dict[str, Any]:
    program, case = zoo.captured(case, zoo.known_dims(architecture))
    watch("capture")
    compiled = pipeline.default()(program)
    watch("compile")
    found: dict[str, Any] = {"engines": len(compiled.engines), "fallbacks": len(compiled.coverage.fallback)}
    try:
        module = compiled.module("tensorrt")
        watch("load")
        found |= _agreement(architecture, case, module, watch)
    except ExecutionError as error:
        found["failed"] = f"{type(error).__name__}: {zoo.first_line(error)}"
    return {**found, **_verified(architecture, case, compiled)} if {"wrong", "failed"} & found.keys() else found


def _verified(architecture: Architecture, case: Case, compiled: Compiled) -> dict[str, Any]:
    """What `pipeline.verify` says of a program that is wrong beside the module: why it is right, if it is."""
    try:
        verified = pipeline.verify("heal", inputs=list(_calls(architecture, case)), executor="tensorrt")(compiled)
    except pipeline.AgreementError as error:
        agreement: Any = error.agreement
        differ = agreement.differences
        key = "exported" if differ and differ == agreement.failures else "verify"
        return {key: zoo.first_line(error)}
    except pipeline.PipelineError as error:
        return {"verify": zoo.first_line(error)}
    if verified.healed:
        return {"healed": [f"{each.target} at node {each.node}: {each.action}" for each in verified.healed]}
    undecided = sum(row.undecided for row in verified.agreement.rows) if verified.agreement else 0
    return {"undecided": undecided} if undecided else {"verify": "agrees with the captured graph"}


def _calls(architecture: Architecture, case: Case) -> Iterator[dict[str, Any]]:
    """The inputs to compare: the example's, and those of other sizes."""
    for kwargs in (case.kwargs, *(_moved(case.inputs(**sizes)) for sizes in architecture.sizes[1:2])):
        yield kwargs if case.decisions == "example" else zoo.padded(kwargs)


def _agreement(architecture: Architecture, case: Case, module: torch.nn.Module, watch: Watch) -> dict[str, Any]:
    exact = architecture.case(torch.float32).model
    exact.load_state_dict({name: value.cpu() for name, value in case.model.state_dict().items()})
    exact.double()
    dtype = str(next((p.dtype for p in case.model.parameters()), torch.float32)).removeprefix("torch.")
    seen: list[tuple[float, float]] = [(0.0, 0.0)]
    tried, wrong = 0, ""
    watch("make")
    for kwargs in _calls(architecture, case):
        try:
            ours = module(**zoo.fresh(kwargs))
            torch.cuda.synchronize()
        except (ShapeError, DecisionError):
            continue
        tried += 1
        watch("run")
        theirs = _eager(case.model, kwargs)
        best = zoo.exactly(exact, case, tree_map(_on_cpu, kwargs))
        best = _eager_in_float32(architecture, case, kwargs) if best is None else best
        for place, errors in enumerate(_errors(ours, theirs, best)):
            seen.append(errors)
            if not errors[0] <= MULTIPLE * errors[1] + FLOOR.get(dtype, 0.0):
                wrong = wrong or f"output {place}: error {errors[0]:.1e}, eager's own {errors[1]:.1e}"
        watch("judge")
    worst = max(seen[1:] or seen, key=lambda pair: pair[0] - MULTIPLE * pair[1])
    found = {"sizes": tried, "error": worst[0], "eager_error": worst[1]}
    return {**found, "wrong": wrong} if wrong else found


def _eager_in_float32(architecture: Architecture, case: Case, kwargs: dict[str, Any]) -> Any:
    """The judge where a model does not run in float64: float32 on the CPU."""
    model = architecture.case(torch.float32).model
    model.load_state_dict({name: value.cpu() for name, value in case.model.state_dict().items()})
    return _eager(model, tree_map(lambda v: _on_cpu(v, torch.float32), zoo.fresh(kwargs)))


def _eager(model: torch.nn.Module, kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**zoo.fresh(kwargs))


def _errors(ours: Any, theirs: Any, best: Any) -> Iterator[tuple[float, float]]:
    """For each output, ours and eager's error relative to the largest value; integers are eager's or the exact ones."""
    leaves = [tree_leaves(value) for value in (ours, theirs, best)]
    for a, b, exact in zip(*leaves, strict=True):
        if not isinstance(a, torch.Tensor):
            yield (0.0, 0.0) if a == b else (float("inf"), 0.0)
            continue
        if (a.dtype, a.shape, a.device.type) != (b.dtype, b.shape, "cuda"):
            yield float("inf"), 0.0
            continue
        a, b = a.cpu(), b.cpu()
        if not a.is_floating_point():
            same = (a == b) | (a == exact.to(a.dtype) if exact.shape == a.shape else False)
            yield (0.0, 0.0) if bool(same.all()) else (float((~same).float().mean()), 0.0)
        elif a.numel():
            exact = zoo.defined(exact, b)
            scale = max(float(exact.double().nan_to_num(0.0, 0.0, 0.0).abs().max()), 1e-30)
            yield zoo.apart(a, exact) / scale, zoo.apart(b, exact) / scale


def _moved(kwargs: Any) -> Any:
    return tree_map(lambda value: value.cuda() if isinstance(value, torch.Tensor) else value, kwargs)


def _on_cpu(value: Any, dtype: torch.dtype | None = None) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.cpu().to(dtype) if dtype is not None and value.is_floating_point() else value.cpu()
