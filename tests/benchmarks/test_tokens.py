"""The benchmark of tokens: kernels by module with the weights that they read, and what becomes of its results."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks import environment, gpu_start, kept_start, together, token_tables, tokens
from benchmarks.tokens import by_module
from pipeline.aten.naming import module_path
from pipeline.compat.transformers import compile_for_generation
from pipeline.records.profile import LayerTime, NodeTime, Profile, SegmentTime
from tests.compat import families

SUBJECT = {"model": "1.1B", "dtype": "float16", "batch": 1, "positions": 1024}


def test_weights_of_a_step_belong_to_the_modules_that_read_them() -> None:
    model = families.model("llama")
    compiled = compile_for_generation(model, max_cache_len=16, max_batch=1, max_prompt_len=4).compiled["decoder"]
    calls = [node for node in compiled.program.graph.nodes if node.op == "call_function"]
    layers = (*(LayerTime(node.name, 0.001, (node.name,)) for node in calls), LayerTime("copy", 0.002))
    nodes = tuple(NodeTime(node.name, 0.001, module_path(node)) for node in calls)
    rows = by_module(compiled, Profile((SegmentTime("engine_0", "tensorrt", 1.0, layers),), nodes))
    assert sum(row["kernels"] for row in rows) == len(layers)
    assert {"module": "TensorRT's own", "kernels": 1, "us": 2.0, "mb": 0.0} in rows
    read = [m.weight.nbytes for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert sum(row["mb"] for row in rows) == pytest.approx(sum(read) / 1e6, abs=0.1 * len(rows))


def test_results_become_tables() -> None:
    times = {"host_us": 20.4, "bandwidth": 0.316}
    rows = [
        {**SUBJECT, "method": "pipeline + graph", "gpu_ms": 1.0, **times},
        {**SUBJECT, "method": "static cache, reduce-overhead", "gpu_ms": 2.0, **times, "host_us_quiet": 18.6},
        {**SUBJECT, "method": "static cache, eager", "error": "a | b"},
    ]
    page = token_tables.tokens({**environment.environment(), "copy_gb_s": 4181, "tokens": rows})
    assert "| 1.1B, float16, batch 1, 1024 positions | pipeline + graph | 1.00 | 0.50 | 0.32 | 20 |" in page
    assert "| static cache, reduce-overhead | 2.00 |  | 0.32 | 20 (19) |" in page and "failed: a / b" in page
    stages = {"decompose": 1.0, "convert": 2.0, "build": 9.0, "improve": 0.5}
    ready = {**SUBJECT, "ready_s": 20.0, "export_s": 4.5, "stages_s": stages, "first_call_s": 1.0}
    ready |= {"host_peak_mb": 6100, "device_mb": 2300}
    page = token_tables.ready({**environment.environment(), "ready": [ready, {**SUBJECT, "error": "a | b"}]})
    assert "| 15.5 | 4.5 | `build` 9.0, `convert` 2.0, `decompose` 1.0 | 1.0 | 6.1 | 2.3 |" in page
    assert "| failed: a / b |" in page
    step = [
        {"module": "mlp", "kernels": 22, "us": 400.0, "mb": 800.0},
        {"module": "", "kernels": 1, "us": 2.0, "mb": 0.0},
    ]
    steps = [{**SUBJECT, "tokens": tokens, "step": step} for tokens in (1, 9)]
    page = token_tables.steps({**environment.environment(), "steps": steps})
    assert page.count(", a prompt of 9 tokens") == 1
    assert "| `mlp` | 22 | 400 | 800 | 2000 |" in page and "|  | 1 | 2 | 0 |  |" in page


TINY = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32}


@pytest.mark.parametrize("model", gpu_start.MODELS)
def test_a_file_gives_the_module_s_result(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``started`` compares them."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for module in (gpu_start, kept_start):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_start, "VIT_L", TINY)
    monkeypatch.setattr(gpu_start, "model_of", lambda size, dtype, positions: families.model("llama", dtype))
    monkeypatch.setattr(gpu_start, "WORDS", 60)
    assert gpu_start.first(model, str(tmp_path))["model_seconds"] > 0
    found = kept_start.started(str(tmp_path))
    assert found["result_seconds"] == pytest.approx(sum(found[f"{k}_seconds"] for k in ("import", "load", "call")))


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model, and no GPU."""
    monkeypatch.setattr(tokens, "DEVICE", "cpu")
    monkeypatch.setattr(tokens, "EXECUTOR", "reference")
    monkeypatch.setattr(tokens, "model_of", lambda size, dtype, positions: families.model("llama", dtype))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 31))
    monkeypatch.setattr(tokens, "warm_up", lambda methods: None)


@pytest.mark.usefixtures("on_the_cpu")
def test_methods_get_ready_and_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_turns(calls: dict[str, Any], **how: int) -> dict[str, dict[str, float]]:
        return {name: {"gpu_ms": 2.0, "host_us": 5.0} for name, call in calls.items() if call() is not None}

    def refused(*args: object) -> None:
        raise RuntimeError("no\nsuch mode")

    monkeypatch.setattr(tokens, "in_turns", in_turns)
    monkeypatch.setitem(tokens.METHODS, "static cache, reduce-overhead", refused)
    methods = ["pipeline + graph", "static cache, reduce-overhead", "static cache, eager"]
    first, eager, failed = tokens.times(methods, 1e9, 1, [1], "1.1B", "float32", 1, 16)()
    weights = first["weights_mb"] * 1e6
    assert first == {**SUBJECT, "dtype": "float32", "positions": 16, **first, "method": "pipeline + graph"}
    assert first["gpu_ms"] == eager["gpu_ms"] == 2 and first["bandwidth"] == pytest.approx(weights / 2e6, abs=0.3)
    assert eager["method"] == "static cache, eager"
    assert failed["method"] == "static cache, reduce-overhead" and failed["error"] == "no"


@pytest.mark.usefixtures("on_the_cpu")
def test_the_first_token_is_told_by_stage() -> None:
    [row] = tokens.readiness(1, "1.1B", "float32", 1, 16)()
    assert {"decompose", "improve", "convert", "build"} <= set(row["stages_s"])
    known = row["export_s"] + sum(row["stages_s"].values()) + row["first_call_s"]
    assert 0 < row["export_s"] < row["ready_s"] and known <= row["ready_s"] + 0.2
    assert "`build`" in token_tables.ready({**environment.environment(), "ready": [row]})


def test_what_failed_has_rows_and_an_end_keeps_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(subjects: list[Any], prepare: object, beside: int, limit: float) -> Iterator[tuple[Any, Any]]:
        assert (len(subjects), beside, limit) == (3, 2, 60)
        yield subjects[0], "it took too long"
        yield subjects[1], [{**tokens._named(subjects[1]), "method": "pipeline + graph", "gpu_ms": 1.0}]
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "RESULTS", tmp_path)
    monkeypatch.setattr(tokens, "bandwidth", lambda: 4e12)
    monkeypatch.setattr(tokens, "gpu_name", lambda: "gpu")
    monkeypatch.setattr(together, "measured", measured)
    asked = "--models 1.1B --dtypes float16 --batches 1 --positions 128 256 512 --together 2 --limit 60 --methods"
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert tokens.main([*asked.split(), "pipeline + graph", "static cache, eager"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    found = json.loads((tmp_path / "tokens-gpu.json").read_text())
    assert found["copy_gb_s"] == 4000 and "ended before all" in capsys.readouterr().err
    known = [(row["positions"], row["method"], row.get("error")) for row in found["tokens"]]
    assert known == [
        (128, "pipeline + graph", "it took too long"),
        (128, "static cache, eager", "it took too long"),
        (256, "pipeline + graph", None),
    ]
