"""Profiles of real plans, with rows as TensorRT names them: every millisecond belongs to a node, or is named."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import pipeline.api  # noqa: F401 - defines how a profile is written
from pipeline import Compiled, ExecutionError
from pipeline.network.kernels import Kernel, kernels
from pipeline.profiling.assemble import MeasuredTimes, Rows, assemble_profile
from pipeline.profiling.matching import kernel_stem, layers_in_name, match_rows, parse_metadata
from pipeline.records.profile import Profile
from tests.viewing.models import architecture, fallbacks

CUDNN = "cudnn_generated_fort_native_sm90_matMul_pointwise_knob_23_128x128x32_10_1_0"


def ran(kernel: Kernel, number: int) -> str:
    """A kernel's name as an H200 tells it: products come from libraries, others with a digest."""
    return CUDNN if kernel.role == "product" else f"{kernel.name}_0x31bf89da657d90b6_myl0_{number}"


def rows(compiled: Compiled, index: int, milliseconds: float = 0.01) -> Rows:
    """A run of an engine: a row for each kernel of its plan."""
    found = kernels(compiled.engines[index].plan)
    return [(ran(kernel, i), milliseconds * (1 + i % 3)) for i, kernel in enumerate(found)]


def measured(compiled: Compiled, runs: int = 3) -> MeasuredTimes:
    """Times of each segment and layer, all runs alike."""
    engines = [segment.name for segment in compiled.partitioned.engine_segments]
    layers = {name: [rows(compiled, i)] * runs for i, name in enumerate(engines)}
    whole = {name: [sum(ms for _, ms in found[0]) * 1.05] * runs for name, found in layers.items()}
    torch_parts = {s.name: [0.5] * runs for s in compiled.partitioned.segments if s.kind == "torch"}
    segments = {**whole, **torch_parts}
    return MeasuredTimes(segments, layers, calls=[9.0, 8.0, 7.5], graphs=[6.0] * 3, gpu="H200", library="RTX")


def profile(name: str) -> Profile:
    return assemble_profile(architecture(name), measured(architecture(name)))


@pytest.mark.parametrize("name", ["resnet50", "vit", "bert", "llama"])
def test_every_millisecond_belongs_to_a_node(name: str) -> None:
    found = profile(name)
    assert found.layers_sum > 0
    named = sum(layer.milliseconds for layer in found.unassigned)
    assert sum(node.milliseconds for node in found.nodes) + named == pytest.approx(found.layers_sum)
    own = [kernel for engine in architecture(name).engines for kernel in kernels(engine.plan) if not kernel.layers]
    assert len(found.unassigned) <= len(own)  # TensorRT's own moves, which the plan ascribes to no layer
    assert all(layer.name.startswith("__myl_") for layer in found.unassigned)
    assert named < 0.1 * found.layers_sum
    assert {layer.by for segment in found.segments for layer in segment.layers if layer.nodes} <= {"plan", "order"}


def test_what_is_fused_counts_for_all_its_nodes() -> None:
    found = profile("resnet50")
    fused = [layer for segment in found.segments for layer in segment.layers if len(layer.nodes) > 1]
    assert any({"convolution", "relu"} <= {name.split("_")[0] for name in layer.nodes} for layer in fused)
    shared = {node.node: node.shared for node in found.nodes}
    assert all(shared[name] >= 1 for layer in fused for name in layer.nodes)


def test_segments_of_pytorch_and_medians() -> None:
    compiled = fallbacks()
    found = assemble_profile(compiled, measured(compiled))
    torch_parts = [segment for segment in found.segments if segment.place == "pytorch"]
    assert len(torch_parts) == 10
    assert all(segment.layers[0].by == "segment" and segment.milliseconds == 0.5 for segment in torch_parts)
    svd = next(node for node in found.nodes if node.node == "_linalg_svd_default_3")
    assert svd.milliseconds == 0.5
    assert svd.target == "aten._linalg_svd.default"
    assert (found.call, found.graph, found.runs) == (8.0, 6.0, 3)
    assert found.by_module(1)[""] >= 5.0


def test_it_prints_a_table() -> None:
    text = str(assemble_profile(fallbacks(), measured(fallbacks())))
    assert "whole call: 8.000 ms; with CUDA graphs: 6.000 ms" in text
    assert re.search(r"sum of layers: [\d.]+ ms \([\d.]+ % of the call, [\d.]+ % of that with CUDA graphs\)", text)
    assert "torch_1 (pytorch): 0.500 ms, its layers 0.500 ms (100.0 %)" in text
    assert "models.py:" in text
    assert len(text.splitlines()) < 90


def test_it_is_written_as_a_trace(tmp_path: Path) -> None:
    found = assemble_profile(fallbacks(), measured(fallbacks()))
    found.trace(tmp_path / "trace.json")
    told = json.loads((tmp_path / "trace.json").read_text())
    spans = [event for event in told["traceEvents"] if event["ph"] == "X"]
    tracks = {track: [e for e in spans if e["cat"] == track] for track in ("call", "segments", "layers", "nodes")}
    assert len(tracks["segments"]) == 21
    layers = sum(event["dur"] for event in tracks["layers"])
    assert layers == pytest.approx(found.layers_sum * 1000, rel=1e-3)
    assert sum(event["dur"] for event in tracks["nodes"]) == pytest.approx(layers, rel=1e-3)
    assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in pairwise(tracks["layers"]))
    assert any("models.py" in where for event in tracks["layers"] for where in event["args"]["where"])


PLANNED = (
    Kernel("function", "__myl_Move", ("a",)),
    Kernel("corrltn", "0/conv_U0", ("0/conv",)),
    Kernel("function", "__myl_AddRelu", ("0/add", "1/relu")),
    Kernel("runtime_fusion", "__myl_FcAdd", ("2/linear:matrix_multiply", "2/linear")),
)
LAYERS = ("a", "0/conv", "0/add", "1/relu", "2/linear:matrix_multiply", "2/linear")


def test_rows_follow_the_plan() -> None:
    names = ["__myl_Move_0x0123456789", CUDNN, "__myl_AddRelu_myl0_3", CUDNN]
    found = match_rows(names, PLANNED, LAYERS, {})
    assert [match.layers for match in found] == [kernel.layers for kernel in PLANNED]


def test_rows_that_the_plan_does_not_have_take_nothing_away() -> None:
    names = ["Reformatting CopyNode for Input Tensor 0", "__myl_Move_myl0_1", "__myl_AddRelu_myl0_3", CUDNN]
    found = match_rows(names, PLANNED, LAYERS, {})
    assert found[2].layers == ("0/add", "1/relu")
    assert found[3].layers == ("2/linear:matrix_multiply", "2/linear")
    assert found[1].layers == ("a",)


NUMBERED = (
    Kernel("shape_call", "__mye2729_0", (), 0),
    Kernel("corrltn", "0/conv_U0", ("0/conv",), 1),
    Kernel("signal", "__mye20817", (), 2),
    Kernel("fully_connected", "__mye3427", ("1/conv__gemm_from_conv1x1",), 3),
    Kernel("wait", "__mye20819", (), 4),
    Kernel("function", "__myl_CastMulRelu", (), 5),
    Kernel("fully_connected", "__mye3469", ("2/conv__gemm_from_conv1x1",), 6),
    Kernel("function", "__myl_CastMulRelu", (), 7),
    Kernel("function", "__myl_Move", (), 8),
    Kernel("corrltn", "3/conv_U0", ("3/conv",), 9),
)
"""As in the plan of a ResNet-50 in float16 (RTX 1.4), where products of 1 x 1 convolutions have names of their own."""
CHAIN = (
    *("0/conv", "1/conv:constant", "1/conv", "1/norm:constant", "1/norm", "1/relu", "2/conv:constant", "2/conv"),
    *("2/norm", "2/relu", "3/conv:constant", "3/conv"),
)


def test_rows_end_in_their_place_in_the_plan() -> None:
    """What names no layers computes those that follow the step before it; a move that none is left for has none."""
    names = [f"{step.name}_myl0_{step.place}" for step in NUMBERED]
    found = match_rows(["[ShapeHostToDeviceCopy 0]", *names], NUMBERED, CHAIN, {})
    assert [match.by for match in found] == [
        *("sizes", "sizes", "plan", "streams", "plan", "streams", "order", "plan", "order", "", "plan")
    ]
    assert found[4].layers == ("1/conv",)
    assert found[6].layers == ("1/norm:constant", "1/norm", "1/relu")
    assert found[8].layers == ("2/norm", "2/relu")


def test_a_row_of_which_two_steps_have_the_name_is_the_one_at_its_place() -> None:
    (match,) = match_rows(["__myl_CastMulRelu_myl0_7"], NUMBERED, CHAIN, {})
    assert match.layers == ("2/norm", "2/relu")


def test_the_inspector_tells_of_layers_by_derived_names() -> None:
    (match,) = match_rows(["__mye3427_myl0_3"], (), CHAIN, {"__mye3427_myl0_3": ["1/conv__gemm_from_conv1x1"]})
    assert (match.layers, match.by) == (("1/conv",), "inspector")


def test_the_inspector_is_believed_first() -> None:
    text = json.dumps({"Layers": [{"Name": "__myl_X", "Metadata": "0/conv\x1f1/relu"}, "only a name", {"Name": "y"}]})
    assert parse_metadata(text) == {"__myl_X": ("0/conv", "1/relu")}
    assert parse_metadata("no JSON") == {}
    found = match_rows(["__myl_X"], (), LAYERS, parse_metadata(text))
    assert (found[0].layers, found[0].by) == (("0/conv", "1/relu"), "inspector")


@pytest.mark.parametrize(
    ("row", "layers"),
    [
        ("0/conv + 1/relu", {"0/conv", "1/relu"}),
        ("0/conv_U0", {"0/conv"}),
        ("2/linear:matrix_multiply", {"2/linear:matrix_multiply"}),
        ("{ForeignNode[0/add...2/linear]}", {"0/add", "1/relu", "2/linear:matrix_multiply", "2/linear"}),
        ("10/conv", set()),
        ("0/conv_1", set()),
        ("Reformatting CopyNode", set()),
    ],
)
def test_layers_named_in_a_row(row: str, layers: set[str]) -> None:
    assert set(layers_in_name(row, LAYERS)) == layers


def test_stems() -> None:
    assert kernel_stem("__myl_MulAddMoveRelu_0x028b8739c08ee54b") == "__myl_MulAddMoveRelu"
    assert kernel_stem("__myl_MulAddMoveRelu_myl0_3") == "__myl_MulAddMoveRelu"
    assert kernel_stem("_gemm_mha_v2_0x146dd540e54041504db13af8b16ed285") == "_gemm_mha_v2"
    assert kernel_stem(CUDNN) == CUDNN


def test_what_is_no_nodes_is_named() -> None:
    compiled = architecture("resnet18")
    extra = [("Reformatting CopyNode for Input Tensor 0", 0.2), *rows(compiled, 0)]
    found = assemble_profile(compiled, MeasuredTimes({"engine_0": [1.0]}, {"engine_0": [extra]}, calls=[1.0]))
    assert found.unassigned[0].name == "Reformatting CopyNode for Input Tensor 0"
    assert "TensorRT's own, no node's: 0.210 ms: Reformatting CopyNode" in str(found)
    assert found.graph is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ExecutionError, match="profiling needs a GPU"):
        fallbacks().profile(torch.randn(4, 8))


def test_what_a_benchmark_keeps_of_a_profile() -> None:
    from benchmarks.gpu_layers import main, row

    kept = row("ten", 4, assemble_profile(fallbacks(), measured(fallbacks())))
    assert kept["layers_ms"] == pytest.approx(sum(kept["modules"].values()) + kept["unassigned_ms"])
    assert len(kept["dearest"]) == 20
    assert json.dumps(kept)
    if not torch.cuda.is_available():
        assert main([]) == 2
