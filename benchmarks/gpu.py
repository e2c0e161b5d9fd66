"""``python -m benchmarks.gpu``: everything that runs a model on this GPU, compared in one run.

Each model and batch has a process of its own, which makes every method ready, measures them in turns and prints a line
of JSON for each. A method that raises is a line with its error; if a process dies, another does it without that method.
With ``--processes`` several get ready side by side, which costs compile time, and then measure one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from benchmarks.environment import collect
from benchmarks.methods import METHODS, Call, Clock, mode
from benchmarks.targets import Group
from benchmarks.turns import WARM_UP, in_turns
from examples.models import Case, full
from pipeline.cli.usage import first_line
from pipeline.trt import CAPABILITIES

MODELS = ("resnet50", "convnext", "vit", "bert", "gpt2", "llama")
"""Without ``timm vit_base_patch16_224``, the ViT-B/16 of a package that need not be installed."""
BATCHES = (1, 8)
BF16 = ("vit", "bert")
"""Measured in bfloat16 as well, at batch 1."""
CHILD = (sys.executable, "-m", "benchmarks.gpu", "--child")
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


def reason(error: Exception) -> str:
    """Why a method has no numbers, on one line."""
    return f"{type(error).__name__}: {first_line(error)}"


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


def prepared(model: str, dtype: str, batch: int) -> tuple[Case, dict[str, torch.Tensor], list[torch.Tensor]]:
    """A case on the GPU in a dtype, its inputs, and what it gives for them in float32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    case, half = case_of(model), getattr(torch, dtype)
    given = {k: v.to(half) if v.is_floating_point() else v for k, v in case.inputs(batch=batch).items()}
    inputs = {name: value.cuda() for name, value in given.items()}
    case = evolve(case, model=Plain(case.model).cuda().eval())
    expected = _expected(case.model, inputs)
    case.model.to(half)
    return case, inputs, expected


def child(model: str, dtype: str, batch: int, methods: Sequence[str]) -> None:
    """Measures methods in this process; a line for each."""
    case, inputs, expected = prepared(model, dtype, batch)
    warm_up(methods)
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        first = sorted(methods, key=lambda m: m != "pipeline")  # the others share what it makes
        measured(case, inputs, expected, first, sys.stdin.readline)


def measured(
    case: Case,
    inputs: dict[str, Any],
    expected: Sequence[torch.Tensor],
    methods: Sequence[str],
    turn: Callable[[], object],
) -> dict[str, dict[str, Any]]:
    """A row for each method, printed as well, with a line before each thing that it does. ``turn`` is called when all
    is ready, and returns when it may be measured."""
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
        except Exception as error:
            rows[method] = {"failed": reason(error)}
            rows[method] |= {"failed_after_seconds": round(time.perf_counter() - start, 2)}
    print(json.dumps({"ready": methods}), flush=True)
    turn()
    for method, times in in_turns(calls, around).items():
        rows[method] |= times
    for method, row in rows.items():
        print(json.dumps({"method": method, **row}), flush=True)
    return rows


LOADING = ("pipeline", "torch.compile", "Torch-TensorRT")
"""Methods that load libraries at their first call. The raw engine's are those of the first."""


def warm_up(methods: Sequence[str], device: str = "cuda") -> None:
    """Has methods compile a layer, so that none is charged for the libraries that it loads."""
    case = Case("linear", torch.nn.Linear(8, 8, device=device, dtype=torch.float16).eval(), {}, None)
    inputs = {"input": torch.ones(1, 8, device=device, dtype=torch.float16)}
    for method in LOADING:
        if method == "pipeline" or any(name.startswith(method) for name in methods):
            print(json.dumps({"starts": method}), flush=True)
            with torch.no_grad(), contextlib.suppress(Exception):  # which it will say of the model
                METHODS[method](case.model, inputs, Clock())()


def case_of(name: str) -> Case:
    """A model by name: an example in its published size; or an image model of timm's, where that is installed, such as
    ``timm vit_base_patch16_224``."""
    library, _, kind = name.rpartition(" ")
    if library != "timm":
        return full(name)
    model = importlib.import_module("timm").create_model(kind).eval()
    images = torch.randn(2, *model.pretrained_cfg["input_size"])
    return Case(name, model, {"x": images}, {"x": {0: Dim("batch", min=1, max=8)}})


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


class Child:
    """A process that measures methods for a model, and what it said."""

    def __init__(self, group: Group, methods: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [*CHILD, *map(str, group), *methods], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.limit = threading.Timer(LIMIT, self.process.kill)
        self.limit.start()
        self.group, self.methods, self.lines = group, methods, list[dict[str, Any]]()

    def get_ready(self) -> None:
        """Returns when it is, or has died."""
        self._listen("ready")

    def measure(self) -> list[dict[str, Any]]:
        """Rows of the methods; as many processes more as it takes, if this one dies."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write("now\n")
            self.process.stdin.close()
        self._listen()
        code = self.process.wait()
        self.limit.cancel()
        rows = [line for line in self.lines if "method" in line]
        if code or not rows:
            guilty = [line["starts"] for line in self.lines if "starts" in line][-1:] or self.methods
            rows += [{"method": m, "failed": f"the process ended with code {code}"} for m in guilty]
        missing = [m for m in self.methods if m not in {row["method"] for row in rows}]
        if missing:
            another = Child(self.group, missing)
            another.get_ready()
            rows += another.measure()
        return rows

    def _listen(self, until: str = "") -> None:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                self.lines.append(json.loads(line))
                if until in self.lines[-1]:
                    return


def by_group(groups: Sequence[Group], methods: Sequence[str], processes: int) -> Iterator[list[dict[str, Any]]]:
    """The rows of each group."""
    for first in range(0, len(groups), processes):
        children = [Child(group, methods) for group in groups[first : first + processes]]
        for child in children:
            child.get_ready()
        for child in children:
            model, dtype, batch = child.group
            named = {"model": model, "dtype": dtype, "batch": batch}
            how = {"side_by_side": len(children)}
            yield [{**named, **_own(row, len(children)), **how} for row in child.measure()]


def _own(row: dict[str, Any], processes: int) -> dict[str, Any]:
    """A row without what the GPU held in all, if other processes held some of it."""
    return row if processes == 1 else {key: value for key, value in row.items() if key != "device_mb"}


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
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--bf16", nargs="*", default=BF16, help="models measured in bfloat16 as well, at batch 1")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--add", action="store_true", help="keep what other models, dtypes and batches gave before")
    parser.add_argument("--processes", type=int, default=1, help="so many models get ready side by side")
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
    parts = map(with_ratios, by_group(groups, options.methods, options.processes))
    collect(f"gpu-{gpu_name()}", "rows", parts, of=("model", "dtype", "batch"), add=options.add)
    return 0


def gpu_name() -> str:
    """The GPU and the library, for the name of a file."""
    gpu = re.sub(r"\W+", "-", torch.cuda.get_device_name().lower())
    return f"{gpu}-{CAPABILITIES.flavour}-{CAPABILITIES.version}"


if __name__ == "__main__":
    sys.exit(main())
