"""The benchmark of tokens: kernels by module with the weights that they read, and what becomes of its results."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks import environment, token_tables
from benchmarks.tokens import by_module
from pipeline.aten.naming import module_path
from pipeline.compat.transformers import compile_for_generation
from pipeline.profiling.records import LayerTime, NodeTime, Profile, SegmentTime
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
        {**SUBJECT, "method": "pipeline + graph", "gpu_ms": 1.0, **times, "ready_s": 30.0, "stages_s": 14.0},
        {**SUBJECT, "method": "static cache, reduce-overhead", "gpu_ms": 2.0, **times},
        {**SUBJECT, "method": "static cache, eager", "error": "a | b"},
    ]
    page = token_tables.tokens({**environment.environment(), "copy_gb_s": 4181, "tokens": rows})
    assert "| 1.1B, float16, batch 1, 1024 positions | pipeline + graph | 1.00 | 0.50 | 0.32 | 20 | 30 | 14 |" in page
    assert "| static cache, reduce-overhead | 2.00 |  | 0.32 |" in page and "failed: a / b" in page
    step = [
        {"module": "mlp", "kernels": 22, "us": 400.0, "mb": 800.0},
        {"module": "", "kernels": 1, "us": 2.0, "mb": 0.0},
    ]
    page = token_tables.steps({**environment.environment(), "steps": [{**SUBJECT, "step": step}]})
    assert "| `mlp` | 22 | 400 | 800 | 2000 |" in page and "|  | 1 | 2 | 0 |  |" in page
