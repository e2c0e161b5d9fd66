"""The benchmarks measure what they say: on small workloads, and without the GPU that the real thing needs."""

from __future__ import annotations

import inspect
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import pipeline
from benchmarks import (
    environment,
    figures,
    gpu,
    gpu_compile,
    gpu_profile,
    gpu_tables,
    improvements,
    kernels,
    memory,
    methods,
    stages,
    summaries,
    tables,
    targets,
    workloads,
)
from examples.models import Case
from tests.benchmarks import compile_times


def test_a_chain_is_as_long_as_it_says() -> None:
    program = pipeline.capture(workloads.chain(30))
    assert sum(node.op == "call_function" for node in program.graph.nodes) == 30
    taken = stages.seconds(program)
    assert [*taken] == list(pipeline.default().names)
    assert stages.own(taken) == pytest.approx(sum(taken.values()) - taken["build"] - taken["load"] - taken["choose"])
    late = {"build", "refit_map", "load", "choose"}
    assert stages.seconds(program, time.process_time, build=False).keys() == {*taken} - late


def test_missed_targets_are_named() -> None:
    def result(seconds: float, growth: float, peak: float) -> dict[str, Any]:
        time = {"model": "ResNet-50", "first_seconds": seconds, "median_seconds": 0.1}
        return {"time": time, "growth": {"growth": growth}, "memory": [{"model": "BERT", "peak_over_weights": peak}]}

    assert stages.missed(result(0.9, 1.4, 2.0)) == []
    assert len(stages.missed(result(1.1, 1.6, 2.1))) == 3
    assert "peak memory of BERT is 2.1 times" in stages.missed(result(0.1, 1.0, 2.1))[0]


def test_memory_is_told_by_the_stage_that_took_it() -> None:
    def stages() -> Iterator[str]:
        yield "resting"
        time.sleep(0.05)
        yield "allocating"
        own = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, 64 * 1024**2, flags=own) as block:  # what malloc gives may lie in memory that it keeps
            for _ in range(64):
                block.write(bytes(1024**2))
            time.sleep(0.05)
        yield ""

    seen = dict(memory.sampled(os.getpid(), stages()))
    assert [*seen] == ["resting", "allocating", ""]
    assert seen["allocating"].anonymous >= seen["resting"].anonymous + 60 * 1024**2
    assert seen[""].first.anonymous <= seen["allocating"].anonymous - 60 * 1024**2


def test_results_say_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "RESULTS", tmp_path)
    data = json.loads(environment.save("mine", {"rows": []}).read_text())
    assert data["versions"]["torch"] == torch.__version__
    assert data["machine"]["cores"] > 0
    assert data["machine"]["cpu"]


def test_the_pages_are_current() -> None:
    assert summaries.SPEED.read_text() == summaries.speed(), "run: python -m benchmarks.tables"
    assert summaries.MODELS.read_text() == summaries.models(), "run: python -m benchmarks.tables"


def test_each_kind_of_result_is_named() -> None:
    assert not [data["name"] for data in figures.read() if not summaries.KINDS.keys() & data.keys()]


ROWS = [
    {"model": "bert", "dtype": "float16", "batch": 1, "method": "raw engine", "gpu_ms": 2.0},
    {"model": "bert", "dtype": "float16", "batch": 1, "method": "raw engine + graph", "gpu_ms": 1.0},
    {"model": "bert", "dtype": "float16", "batch": 1, "method": "eager", "gpu_ms": 3.0},
    {"model": "bert", "dtype": "float16", "batch": 1, "method": "Torch-TensorRT", "failed": "a | b"},
]


def test_ratios_are_to_the_raw_engine_of_the_same_run() -> None:
    assert [row.get("over_raw") for row in gpu.with_ratios(ROWS)] == [1.0, 0.5, 1.5, None]
    assert [row.get("over_raw_graph") for row in gpu.with_ratios(ROWS)] == [2.0, 1.0, 3.0, None]
    assert "over_raw" not in gpu.with_ratios(ROWS[2:])[0]


def test_gpu_results_become_tables() -> None:
    rows = [{**r, "host_us": 4.0, "compile_seconds": 5.0, "relative_error": 1e-3} for r in gpu.with_ratios(ROWS)]
    text = gpu_tables.gpu({"name": "gpu", **environment.environment(), "rows": rows})
    assert "### bert, float16, batch 1" in text
    assert "| eager | 3.000 | 1.50 | 3.00 | 4 |  | 5.0 |  |  | 1.0e-03 |" in text
    assert "| Torch-TensorRT | failed: a / b |" in text
    details = text.partition("### bert")[2]
    assert len({line.count("|") for line in details.splitlines() if line.startswith("|")}) == 1
    assert "The host took" not in text


COMPILED = [
    {"method": "pipeline", "compile_seconds": 2.5, "all_seconds": [3.0, 2.5, 2.0], "relative_error": 1e-3},
    {"method": "Torch-TensorRT", "compile_seconds": 5.0, "all_seconds": [5.0], "relative_error": 1e-3},
]


def test_compile_times_become_a_table_and_a_plot() -> None:
    def rows(model: str) -> list[dict[str, Any]]:
        return [{"model": model, "dtype": "float16", "batch": 8, **row} for row in COMPILED]

    slow = [{**row, "compile_seconds": 5.0} for row in rows("vit")]
    failed = [rows("bert")[0], {**rows("bert")[1], "failed": "Error: a | b"}]
    del failed[1]["compile_seconds"]
    data = {**SOME, "compilations": [*rows("resnet50"), *slow, *failed]}
    text = gpu_tables.compilations(data)
    assert "| resnet50, float16, batch 8 | 5.00 (5.00 to 5.00) | 2.50 (2.00 to 3.00) | 0.500 |" in text
    assert "| bert, float16, batch 8 | failed: Error: a / b | 2.50 (2.00 to 3.00) |  |" in text
    assert "| 0.500 to 1.000 | 1 of 2 | **not met** | vit, float16, batch 8: 1.000 |" in text
    [plot] = figures.of(data)
    assert [panel.values for panel in plot.panels] == [(5.0, 2.5), (5.0, 5.0), ("failed", 2.5)]
    assert [panel.limit for panel in plot.panels] == [3.0, 3.0, None]


def test_each_compile_time_is_of_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_compile, "PRELOADED", [])
    group = ("vit", "float16", 8)
    rows = gpu_compile.measured(group, ["pipeline", "raises", "dies"], 2, compile_times.told)
    assert [row["method"] for row in rows] == ["pipeline", "raises", "dies"]
    assert rows[0]["compile_seconds"] == 8.0 and rows[0]["all_seconds"] == [8.0, 8.0]
    assert rows[0]["host_peak_mb"] != os.getpid()
    assert rows[1]["failed"] == "RuntimeError: no vit"
    assert rows[2]["failed"].startswith("BrokenProcessPool")


@pytest.mark.parametrize(
    ("methods", "loads"),
    [
        (["eager"], ["pipeline"]),
        (["raw engine", "torch.compile reduce-overhead"], ["pipeline", "torch.compile"]),
        (["Torch-TensorRT + graph", "pipeline"], ["pipeline", "Torch-TensorRT"]),
    ],
)
def test_no_method_is_charged_for_what_it_loads(
    methods: list[str], loads: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = []

    def method(name: str, model: nn.Module, inputs: dict[str, torch.Tensor], clock: Any) -> Any:
        if name == "torch.compile":
            raise RuntimeError("no compiler")
        return lambda: called.append((name, tuple(model(**inputs).shape)))

    for name in gpu.LOADING:
        monkeypatch.setitem(gpu.METHODS, name, partial(method, name))
    gpu.warm_up(methods, "cpu")
    assert called == [(name, (1, 8)) for name in loads if name != "torch.compile"]
    assert capsys.readouterr().out.splitlines() == [json.dumps({"starts": name}) for name in loads]


SOME: dict[str, Any] = {"name": "gpu", **environment.environment()}


def test_a_target_is_not_met_where_it_was_not_measured() -> None:
    group = {"dtype": "float16", "batch": 1, "method": "pipeline + graph"}
    rows = [{"model": "resnet50", **group, "host_us": 20.0}, {"model": "vit", **group}]
    [target] = [t for t in targets.TARGETS if t.field == "host_us"]
    assert gpu_tables._target(target, targets.groups(rows))[1:] == [
        *("20.0", "1 of 1", "met where measured", "vit, float16, batch 1: not measured")
    ]


def test_gains_become_tables() -> None:
    row = {"model": "vit", "passes": "all but simplify_masks", "layers": 5, "gpu_ms": 2.0, "over_all": 1.25}
    assert "| vit | all but simplify_masks | 5 | 2.000 | 1.250 |" in tables.gains({**SOME, "gains": [row]})
    assert ", earlier\n" in tables.gains({**SOME, "name": "improvements-before", "gains": [row]})


def test_kernels_become_tables() -> None:
    row = {"model": "vit", "passes": "all", "kernels": 9, "products": 4, "attentions": 1, "others": 4}
    text = tables.kernels({**environment.environment(), "capability": "8.9", "kernels": [row]})
    assert "| vit | all | 9 | 4 | 1 | 4 |" in text


def test_variants_differ_in_their_networks() -> None:
    """A pass that changes nothing in a model has no variant of its own."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 8, stride=8), torch.nn.ReLU()).eval()
    found = improvements.variants(model, {"input": torch.randn(1, 3, 16, 16)})
    assert {"none", "all"} <= set(found) <= {"none", "all", "all but patch_embedding"}


def test_there_must_be_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == "benchmarks.gpu: there is no GPU here\n"


@pytest.mark.parametrize("method", [methods.eager, methods.inductor], ids=["eager", "torch.compile"])
def test_a_method_gives_a_call(method: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    model, x = torch.nn.Linear(2, 3), torch.ones(1, 2)
    assert torch.equal(method(model, {"input": x}, methods.Clock())(), model(x))


def test_methods_share_what_is_compiled() -> None:
    made: dict[str, Any] = {}
    first, second = methods.Clock(made), methods.Clock(made)
    assert (first.once("engine", lambda: 1), second.once("engine", lambda: 2)) == (1, 1)
    assert (first.shared, second.shared) == (False, True)


def test_kernels_are_summed_up_by_what_they_do() -> None:
    calls = [("nvjet_hsh", 10.0), ("fmha_v2", 5.0), ("__myl_Add", 1.0)] * gpu_profile.CALLS
    found = gpu_profile.summary(calls)
    assert (found["kernels"], found["gpu_us"]) == (3.0, 16.0)
    assert {role: row["us"] for role, row in found["roles"].items()} == {"product": 10, "attention": 5, "other": 1}
    assert found["dearest"][0] == {"kernel": "nvjet_hsh", "us": 10.0, "times": 1.0}


@pytest.mark.parametrize("adds", [True, False])
def test_rows_that_are_measured_anew_take_the_place_of_the_old(
    adds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is ended has lost nothing of what it did not reach."""
    monkeypatch.setattr(environment, "RESULTS", tmp_path)
    rows = [{"model": m, "kernels": i} for m in ("bert", "vit", "gpt2") for i in (1, 2)]
    (tmp_path / "kernels.json").write_text(json.dumps({"kernels": rows}))

    def measured(model: str) -> list[dict[str, Any]]:
        if model == "gpt2":
            raise KeyboardInterrupt
        return [{"model": model, "kernels": 5}]

    monkeypatch.setattr(kernels, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        kernels.main(["--models", "vit", "llama", "gpt2", *["--add"] * adds])
    kept = json.loads((tmp_path / "kernels.json").read_text())
    vit, llama = measured("vit"), measured("llama")
    assert kept["kernels"] == ([*rows[:2], *vit, *rows[4:], *llama] if adds else [*vit, *llama])
    assert kept["capability"] == kernels.CAPABILITY


def test_nothing_is_measured_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is ready first, and a child's turn is a line from its parent."""
    done: list[str] = []
    monkeypatch.setattr(gpu, "ready", lambda case, method, *_: (done.append(method) or (lambda: None), {}))
    monkeypatch.setattr(gpu, "in_turns", lambda calls, around: {m: done.append(f"time {m}") or {} for m in calls})
    case = Case("toy", torch.nn.Linear(2, 2), {}, None)
    gpu.measured(case, {}, [], ["a", "b"], lambda: done.append("turn"))
    assert done == ["a", "b", "turn", "time a", "time b"]
    assert "sys.stdin.readline" in inspect.getsource(gpu.child)


def test_a_process_that_dies_loses_one_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it starts, waits for its turn, and ends while it measures ``b``; other lines are not its own."""
    script = tmp_path / "child.py"
    script.write_text(
        "import json, os, sys\n"
        "methods = sys.argv[4:]\n"
        "say = lambda **row: print(json.dumps(row), flush=True)\n"
        "print('loading')\n"
        "say(ready=methods)\n"
        "assert sys.stdin.readline()\n"
        "for method in methods:\n"
        "    say(starts=method)\n"
        "    os._exit(3) if method == 'b' else None\n"
        "for method in methods:\n"
        "    say(method=method, gpu_ms=1.0, device_mb=7)\n"
    )
    monkeypatch.setattr(gpu, "CHILD", (sys.executable, str(script)))
    groups = [("vit", "float16", batch) for batch in (1, 2, 3)]
    for group, rows in zip(groups, gpu.by_group(groups, ["a", "b", "c"], 2), strict=True):
        assert {(row["model"], row["dtype"], row["batch"]) for row in rows} == {group}
        assert {row["method"]: row.get("gpu_ms", row.get("failed")) for row in rows} == {
            "a": 1.0,
            "b": "the process ended with code 3",
            "c": 1.0,
        }
        assert {row["side_by_side"] for row in rows} == {2 if group[2] < 3 else 1}
        assert {row.get("device_mb") for row in rows if "gpu_ms" in row} == {None if group[2] < 3 else 7}


@pytest.mark.parametrize(
    ("script", "code"), [("raise SystemExit(3)", 3), ("print('noise', flush=True); import time; time.sleep(60)", -9)]
)
def test_a_process_that_says_nothing_ends_its_group(script: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or is late."""
    monkeypatch.setattr(gpu, "CHILD", (sys.executable, "-c", script))
    monkeypatch.setattr(gpu, "LIMIT", 2 if code < 0 else 60)
    (rows,) = gpu.by_group([("vit", "float16", 1)], ["a", "b"], 1)
    assert [row["failed"] for row in rows] == [f"the process ended with code {code}"] * 2


def test_models_of_timm_are_made_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tiny(torch.nn.Module):
        pretrained_cfg: ClassVar = {"input_size": (3, 4, 5)}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model={"vit_tiny": Tiny()}.__getitem__))
    case = gpu.case_of("timm vit_tiny")
    inputs = case.inputs(batch=6)
    assert inputs["x"].shape == (6, 3, 4, 5)
    assert gpu.Plain(case.model)(**inputs).shape == (6, 60)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError):
        gpu.case_of("timm vit_tiny")


def test_errors_are_relative_to_the_largest_output() -> None:
    assert gpu.error({"y": torch.tensor([1.0, 3.0]).half()}, [torch.tensor([1.0, 4.0])]) == 0.25


def test_a_peer_that_is_not_installed_is_an_error() -> None:
    if any(name in sys.modules for name in ("torch_tensorrt", "torch_tensorrt_rtx")):
        pytest.skip("Torch-TensorRT is installed here")
    with pytest.raises(ModuleNotFoundError, match="Torch-TensorRT is not installed"):
        methods.torch_tensorrt(torch.nn.Linear(2, 3), {"input": torch.ones(1, 2)}, methods.Clock())
