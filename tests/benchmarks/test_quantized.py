"""``benchmarks.quantized`` on small models: its rows, and the section that is written of them."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch

from benchmarks import quantized
from benchmarks.quantized_models import MODELS, PLAIN, WAYS, made
from benchmarks.quantized_tables import HEAD
from benchmarks.quantized_tables import quantized as section
from pipeline.trt import CAPABILITIES

SMALL = argparse.Namespace(
    layers=1,
    width=128,
    dtype="float32",
    errors=True,
    models=["bert"],
    choices=["pipeline INT8 weights"],
    capabilities=[""],
)


@pytest.mark.parametrize("name", MODELS)
def test_a_row_tells_what_became_of_a_model(name: str) -> None:
    found = quantized.row(name, "pipeline INT8 weights", "", SMALL)
    assert 0 < found["relative_error"] < 0.05
    assert found["capability"] == "here"
    assert found["file_bytes"] >= found["engine_bytes"]
    assert (found["weights"] > 0) == CAPABILITIES.quantization
    assert (found["fallbacks"] == 0) == CAPABILITIES.quantization


@pytest.mark.parametrize(("way", "bits"), [("pipeline INT8 weights", 8), ("pipeline INT4 weights", 4)])
def test_codes_and_scales_are_expected_of_linear_layers_only(way: str, bits: int) -> None:
    plain, fewer = (made("bert", each, 1, 128, torch.float16) for each in (PLAIN, way))
    linear = [m.weight for m in plain.model.modules() if isinstance(m, torch.nn.Linear)]
    scales = sum(4 * len(w) if bits == 8 else 2 * w.numel() // 128 for w in linear)
    assert plain.expected == 2 * sum(p.numel() for p in plain.model.parameters())
    assert plain.expected - fewer.expected == sum(w.numel() for w in linear) * (16 - bits) // 8 - scales


@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if way.library != "pipeline"])
def test_a_head_is_expected_as_its_library_leaves_it(way: str) -> None:
    """ModelOpt keeps a decoder's head in floats, torchao quantizes it."""
    pytest.importorskip(WAYS[way].library)
    found, plain = (made("llama", each, 1, 128, torch.float16) for each in (way, PLAIN))
    head = plain.model.get_submodule("model.lm_head").get_parameter("weight").numel()
    linear = sum(m.weight.numel() for m in plain.model.modules() if isinstance(m, torch.nn.Linear))
    coded = linear - head * (WAYS[way].library == "modelopt")
    saved = coded * (16 - (WAYS[way].bits or 16)) // 8
    assert 0 <= found.expected - (plain.expected - saved) <= coded / 25  # scales


def test_a_way_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(quantized, "row", fails)
    (found,) = quantized.attempted("bert", "pipeline INT8", "", SMALL)
    assert found["failed"] == "RuntimeError: no kernel"


def test_the_section_has_a_line_a_row() -> None:
    named = {"model": "bert", "way": "torchao INT8", "capability": "8.9", "engines": 1, "fallbacks": 0}
    sizes = {"engine_bytes": 105, "file_bytes": 110, "expected_bytes": 100}
    counts = {"weights": 8, "fused": 7, "pairs": 0, "pairs_fused": 0}
    row = named | sizes | counts | {"not_fused": ["int8 weight: why"], "relative_error": 0.0123}
    failed = {"model": "vit", "way": "torchao INT8", "capability": "8.9", "failed": "BuildError: no"}
    machine = {"gpu": None, "cpu": "a CPU", "cores": 2}
    data = {"date": "2026-11-23", "machine": machine, "versions": {"tensorrt_rtx": "1.7.1"}, "name": "quantized"}
    text = section({**data, "quantized": [row, failed]})
    assert "with tensorrt_rtx 1.7.1" in text
    assert "| bert | torchao INT8 | 8.9 | 1e-02 | 7 of 8 |  | 1.05 | 1.10 |" in text
    assert "failed: BuildError: no" in text and "- torchao INT8, 8.9: int8 weight: why" in text
    eager = {**row, "way": PLAIN, "gpu_ms": 0.5, "eager_ms": 1.5}
    timed = section({**data, "quantized": [eager, {**row, "gpu_ms": 0.25}]})
    assert "| 0.500 ms | 1.00 | 1.500 ms |" in timed and "| 0.250 ms | 2.00 |  |" in timed and len(HEAD) == 8


def test_every_way_is_named_by_who_quantizes() -> None:
    assert {name.split(" ")[0] for name in WAYS} == {"not", "pipeline", "ModelOpt", "torchao"}
    assert all(way.is_here for way in WAYS.values() if way.library == "pipeline")
