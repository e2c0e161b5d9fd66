"""What a view says of a program: every node, where it runs, what it is made of and why; the same after keeping it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from attrs import evolve

import pipeline
from pipeline.aten.naming import node_name
from pipeline.errors import ArtifactError
from pipeline.network.pairs import find_quantized_pairs
from pipeline.trt import CAPABILITIES
from pipeline.viewing.collect import view_program
from pipeline.viewing.page import write_page
from pipeline.viewing.plan_text import fusion_texts
from pipeline.viewing.records import NodeView, ProgramView
from pipeline.viewing.sources import open_view, read_view, view_to_json
from tests.quantized import test_pairs as quantized_pairs
from tests.viewing.models import architecture, fallbacks


@pytest.fixture(scope="module")
def seen() -> ProgramView:
    return view_program(fallbacks())


def node(program: ProgramView, name: str) -> NodeView:
    return next(each for each in program.nodes if each.name == name)


def test_every_operator_is_there_with_its_place(seen: ProgramView) -> None:
    coverage = fallbacks().coverage
    places = {each.name: each.place for each in seen.operators}
    assert places == {row.node: "tensorrt" for row in coverage.converted} | {
        row.node: "pytorch" for row in coverage.fallback
    }
    assert len(seen.fallbacks) == 10
    assert all(each.reason and each.place == "pytorch" for each in seen.fallbacks)


def test_a_node_says_what_it_is(seen: ProgramView) -> None:
    linear = node(seen, "linear")
    assert linear.module == "blocks.0"
    assert linear.target == "aten.linear.default"
    assert linear.converter == "pipeline.converters.matmul.linear"
    assert linear.where.startswith("models.py:")
    assert linear.where.endswith("x = block(x).relu()")
    assert str(linear.values[0]).endswith("=1..4..9, 8]")
    assert linear.values[0].nbytes == 4 * 8 * 4
    assert {"MATRIX_MULTIPLY", "CONSTANT"} <= {layer.kind for layer in linear.layers}
    assert {w.name: (w.shape, w.nbytes, w.recipe) for w in linear.weights} == {
        "blocks.0.weight": ((8, 8), 256, "%blocks.0.weight"),
        "blocks.0.bias": ((8,), 32, "%blocks.0.bias"),
    }


def test_kernels_of_the_plans_are_told_by_node(seen: ProgramView) -> None:
    """Every operator that an engine runs is in one of its kernels, and what is fused is told of all of it."""
    assert seen.kernels
    lone = [each.name for each in seen.operators if each.place == "tensorrt" and not each.kernels]
    assert not lone
    fused = [kernel for kernel in seen.kernels if "linear" in kernel.nodes]
    assert any({"linear", "relu"} <= {*kernel.nodes} for kernel in fused)
    assert all(kernel.segment.startswith("engine_") for kernel in seen.kernels)


def test_segments_cuts_stages_and_versions(seen: ProgramView) -> None:
    compiled = fallbacks()
    engines = {engine.name: engine.nbytes for engine in compiled.engines}
    assert {s.name: s.nbytes for s in seen.segments if s.place == "tensorrt"} == engines
    assert [(c.source, c.target, c.nbytes) for c in seen.cuts] == [
        (c.source, c.target, c.nbytes) for c in compiled.partitioned.cuts
    ]
    assert [s.stage for s in seen.stages][:2] == ["capture", "decompose"]
    assert all(s.seconds > 0 for s in seen.stages)
    assert dict(seen.versions)["torch"] == torch.__version__
    assert dict(seen.settings) == {"min_block_size": "1"}


@pytest.mark.parametrize("name", ["resnet18", "llama"])
def test_layers_belong_to_nodes(name: str) -> None:
    compiled = architecture(name)
    names = {each.name for each in view_program(compiled).nodes} | {*compiled.program.constants}
    layers = [layer.name for network in compiled.networks for layer in network.layers]
    assert not [layer for layer in layers if node_name(layer) not in names]


def test_a_kept_program_looks_the_same(tmp_path: Path, seen: ProgramView) -> None:
    fallbacks().save(tmp_path / "program.trtp")
    kept = open_view(tmp_path / "program.trtp")
    assert len(kept.weights_digest) == 64
    assert kept == evolve(seen, title="program", stages=(), weights_digest=kept.weights_digest)


def test_json_and_back(tmp_path: Path, seen: ProgramView) -> None:
    file = tmp_path / "program.json"
    file.write_text(view_to_json(seen), encoding="utf-8")
    assert read_view(file) == seen == open_view(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a program's JSON view"),
        ('{"format": "pipeline program view", "schema": 99}', "schema 99"),
        ('{"format": "pipeline program view", "schema": 1, "program": {"title": 3}}', "expected a value of type str"),
    ],
)
def test_what_is_no_view_is_said(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "program.json"
    file.write_text(text)
    with pytest.raises(ArtifactError, match=said):
        read_view(file)


def test_a_folder_without_a_view_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"has no program\.json"):
        open_view(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_view(tmp_path / "none.trtp")


def test_a_program_that_is_only_partitioned() -> None:
    part = pipeline.default(min_block_size=1).until("partition")(torch.nn.Linear(4, 4), args=(torch.randn(2, 4),))
    found = view_program(part)
    assert [s.weights for s in found.segments] == [(16 + 4) * 4]
    assert not found.kernels
    assert found.segments[0].nbytes == 0
    assert [w.name for w in found.operators[0].weights] == ["weight", "bias"]


def test_quantizing_nodes_say_what_the_report_says() -> None:
    """Nodes of weights, and both of an activation; a weight that the engine holds in floats is not fused."""
    network = quantized_pairs.NETWORK
    for program, fused in ((quantized_pairs.BOTH, True), (quantized_pairs.BUILT, False)):
        rows = find_quantized_pairs(network, quantized_pairs.plan(program))
        found = fusion_texts([network], rows)
        assert {name for _, name in found} == {"weight", "rounded", "back"}
        assert found["engine", "back"] == found["engine", "rounded"]
        for pair in rows:
            said = found["engine", pair.layer]
            assert said.startswith("fused" if fused else "not fused")
            assert pair.why in said
            assert f"{pair.type} {pair.of}" in said
    assert fusion_texts([network], find_quantized_pairs(network, b"weights"))["engine", "weight"].startswith(
        "not known"
    )


@pytest.mark.skipif(not CAPABILITIES.quantization, reason="TensorRT-RTX builds quantized networks from 1.6 on")
def test_a_quantized_program_says_what_was_fused() -> None:
    torch.manual_seed(0)
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).eval(),
        torch.randn(8, 64),
    )
    stage = pipeline.quantize("int8", "int8", calibration=[x])
    compiled = pipeline.default(min_block_size=1).insert(stage, before="decompose")(model, args=(x,))
    said = [node.fusion for node in view_program(compiled).nodes if node.fusion]
    assert len(compiled.quantization) == 4
    for pair in compiled.quantization:
        assert any(pair.why in each for each in said)


def test_a_page_has_the_view_in_it(tmp_path: Path, seen: ProgramView) -> None:
    write_page(seen, tmp_path / "page.html")
    assert open_view(tmp_path / "page.html") == seen
    (tmp_path / "other.html").write_text("<p>Another page</p>")
    with pytest.raises(ArtifactError, match="is not a program's report"):
        open_view(tmp_path / "other.html")
