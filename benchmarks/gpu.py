"""``python -m benchmarks.gpu``: everything that runs a model on this GPU, compared in one run.

Each model and batch has a process of its own, which makes every method ready, measures them in turns and prints a line
of JSON for each. A method that raises is a line with its error; if a process dies, another does it without that method.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from torch.utils._pytree import tree_leaves

from benchmarks.environment import RESULTS, save
from benchmarks.methods import METHODS, Call, Clock, mode
from benchmarks.turns import WARM_UP, in_turns
from examples.models import Case, full
from pipeline.sources import first_line
from pipeline.trt import CAPABILITIES

MODELS = ("resnet50", "convnext", "vit", "bert", "gpt2", "llama")
BATCHES = (1, 8)
BF16 = ("vit", "bert")
"""Measured in bfloat16 as well, at batch 1."""
LIMIT = 600
"""Seconds for one process."""


def error(actual: Any, expected: Sequence[torch.Tensor]) -> float:
    """The largest difference relative to the output's largest magnitude, over all outputs."""
    pairs = zip(tree_leaves(actual), expected, strict=True)
    return max(float((a.float() - e).abs().max() / e.abs().max()) for a, e in pairs)


def ready(
    case: Case, method: str, inputs: dict[str, Any], expected: Sequence[torch.Tensor], made: Any = None
) -> tuple[Call, dict[str, Any]]:
    """A method's call, and its row: seconds of torch.export and from then until the first result is there, the most
    memory that took on the host and what it holds on the GPU, and the result's error. A method that runs what another
    has compiled (``made``) has no seconds of its own, and no peak."""
    clock = Clock(made)
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    free, memory = torch.cuda.mem_get_info()[0], HostMemory()
    start = time.perf_counter()
    with mode(method):
        call = METHODS[method](case.model, inputs, clock)
        result = call()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start - clock.export
        row: dict[str, Any] = {"relative_error": error(result, expected)}
        if not clock.shared:
            row |= {"export_seconds": round(clock.export, 2), "compile_seconds": round(seconds, 2)}
            row |= {"host_peak_mb": memory.peak_mb()}
        for _ in range(WARM_UP):
            call()
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return call, {**row, "device_mb": round((free - torch.cuda.mem_get_info()[0]) / 1e6)}


class HostMemory:
    """The peak of this process's resident set above what it was when this was made; None where Linux has none."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.before = self._read("VmRSS")

    def peak_mb(self) -> int | None:
        """Megabytes."""
        peak = self._read("VmHWM")
        return None if peak is None or self.before is None else round((peak - self.before) / 1e3)

    @staticmethod
    def _read(name: str) -> int | None:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
        return int(found[1]) if found else None


def child(model: str, dtype: str, batch: int, methods: Sequence[str]) -> None:
    """Measures methods in this process; a line for each."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    case, half = full(model), getattr(torch, dtype)
    given = {k: v.to(half) if v.is_floating_point() else v for k, v in case.inputs(batch=batch).items()}
    inputs = {name: value.cuda() for name, value in given.items()}
    case = evolve(case, model=Plain(case.model).cuda().eval())
    expected = _expected(case.model, inputs)
    case.model.to(half)
    warm_up()
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        measured(
            case, inputs, expected, sorted(methods, key=lambda m: m != "pipeline")
        )  # the others share what it makes


def measured(
    case: Case, inputs: dict[str, Any], expected: Sequence[torch.Tensor], methods: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """A row for each method, printed as well, with a line before each thing that it does."""
    made: dict[str, Any] = {}
    calls, rows = dict[str, Call](), dict[str, dict[str, Any]]()

    @contextlib.contextmanager
    def around(method: str) -> Iterator[None]:
        print(json.dumps({"starts": method}), flush=True)
        with mode(method):
            yield

    for method in methods:
        print(json.dumps({"starts": method}), flush=True)
        start = time.perf_counter()
        try:
            calls[method], rows[method] = ready(case, method, inputs, expected, made)
        except Exception as failure:
            rows[method] = {"failed": f"{type(failure).__name__}: {first_line(failure)}"}
            rows[method] |= {"failed_after_seconds": round(time.perf_counter() - start, 2)}
    for method, times in in_turns(calls, around).items():
        rows[method] |= times
    for method, row in rows.items():
        print(json.dumps({"method": method, **row}), flush=True)
    return rows


def warm_up() -> None:
    """Loads TensorRT, so that no method is charged for it."""
    case = Case("linear", torch.nn.Linear(8, 8).half().cuda().eval(), {}, None)
    inputs = {"input": torch.ones(1, 8, device="cuda", dtype=torch.float16)}
    with torch.no_grad():
        METHODS["pipeline"](case.model, inputs, Clock())()


class Plain(torch.nn.Module):
    """A model that gives a tensor or a tuple of them: what its own class of results costs is not compared."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> Any:
        """The model's tensors."""
        leaves = tree_leaves(self.model(**inputs))
        return leaves[0] if len(leaves) == 1 else tuple(leaves)


def _expected(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What a model of float32 gives for rounded inputs."""
    with torch.no_grad():
        outputs = model(**{k: v.float() if v.is_floating_point() else v for k, v in inputs.items()})
    return [leaf.float() for leaf in tree_leaves(outputs)]


def group(model: str, dtype: str, batch: int, methods: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a model and batch, from as many processes as it takes."""
    rows: list[dict[str, Any]] = []
    while missing := [m for m in methods if m not in {row["method"] for row in rows}]:
        lines, code = _run([sys.executable, "-m", "benchmarks.gpu", "--child", model, dtype, str(batch), *missing])
        rows += [line for line in lines if "method" in line]
        if code or not lines:
            guilty = [line["starts"] for line in lines if "starts" in line][-1:] or missing
            rows += [{"method": m, "failed": f"the process ended with code {code}"} for m in guilty]
    return [{"model": model, "dtype": dtype, "batch": batch, **row} for row in rows]


def _run(command: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        output, code = (late.stdout or b"").decode(), -1
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")], code


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row of one group with its GPU time as a multiple of the raw engine's, without and with a graph."""
    raw = {r["method"]: r["gpu_ms"] for r in rows if r["method"].startswith("raw") and "gpu_ms" in r}

    def of(row: dict[str, Any], engine: str, name: str) -> dict[str, float]:
        return {name: round(row["gpu_ms"] / raw[engine], 3)} if "gpu_ms" in row and engine in raw else {}

    return [
        {**row, **of(row, "raw engine", "over_raw"), **of(row, "raw engine + graph", "over_raw_graph")} for row in rows
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, saves after each group, and prints; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description="compare ways to run models on this GPU")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--bf16", nargs="*", default=BF16, help="models measured in bfloat16 as well, at batch 1")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--add", action="store_true", help="keep what other models, dtypes and batches gave before")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks.gpu: there is no GPU here", file=sys.stderr)
        return 2
    if options.child:
        model, dtype, batch, *methods = options.child
        child(model, dtype, int(batch), methods)
        return 0
    groups = [(model, "float16", batch) for model in options.models for batch in options.batches]
    groups += [(model, "bfloat16", 1) for model in options.bf16]
    rows = kept(RESULTS / f"gpu-{gpu_name()}.json", groups) if options.add else []
    for model, dtype, batch in groups:
        rows += with_ratios(group(model, dtype, batch, options.methods))
        path = save(f"gpu-{gpu_name()}", {"rows": rows})
        for row in rows[-len(options.methods) :]:
            print(json.dumps(row), flush=True)
    print(f"written to {path}")
    return 0


def kept(path: Path, groups: Sequence[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """The rows of a file that are of other groups."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return [row for row in rows if (row["model"], row["dtype"], row["batch"]) not in groups]


def gpu_name() -> str:
    """The GPU and the library, for the name of a file."""
    gpu = re.sub(r"\W+", "-", torch.cuda.get_device_name().lower())
    return f"{gpu}-{CAPABILITIES.flavour}-{CAPABILITIES.version}"


if __name__ == "__main__":
    sys.exit(main())
