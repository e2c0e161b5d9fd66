"""Profiles measured on a GPU: the layers' sum is the engine's time, every millisecond is a node's or named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pipeline
from examples.models import full
from pipeline.cli.commands import main
from tests.viewing.models import Fallbacks, architecture

pytestmark = pytest.mark.gpu


@pytest.mark.alone
@pytest.mark.parametrize("name", ["resnet50", "vit", "bert"])
def test_the_sum_of_layers_is_the_engines_time(name: str) -> None:
    case = full(name, torch.float16)
    inputs = {name: value.cuda() for name, value in case.inputs(batch=8).items()}
    compiled = pipeline.default()(case.model.cuda(), kwargs=inputs)
    found = compiled.profile(**inputs)
    [engine] = found.segments
    assert engine.timed == "kernels", str(found)
    assert 0.9 * engine.milliseconds <= engine.layers_sum <= 1.1 * engine.milliseconds, str(found)
    named = sum(layer.milliseconds for layer in found.unassigned)
    assert sum(node.milliseconds for node in found.nodes) + named == pytest.approx(found.layers_sum)
    assert named < 0.1 * found.layers_sum, str(found)
    assert found.graph is not None
    assert found.graph <= found.call * 1.1


def test_pytorch_segments_are_measured_too(tmp_path: Path) -> None:
    rows = pipeline.Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(9, 8))
    compiled = pipeline.default(min_block_size=1)(Fallbacks().eval(), args=(rows,))
    x = torch.randn(4, 8)
    before = x.clone()
    found = compiled.profile(x, runs=5)
    assert torch.equal(x, before)
    assert len(found.segments) == len(compiled.partitioned.segments)
    assert all(segment.milliseconds > 0 for segment in found.segments)
    assert found.runs == 5
    found.trace(tmp_path / "trace.json")
    compiled.report(html=tmp_path / "report.html", profile=found)
    assert "Time on the GPU" in (tmp_path / "report.html").read_text()


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    architecture("resnet18").save(tmp_path / "net.trtp")
    trace = tmp_path / "trace.json"
    assert main(["profile", str(tmp_path / "net.trtp"), "--runs", "3", "--trace", str(trace)]) == 0
    assert "sum of layers" in capsys.readouterr().out
    assert trace.stat().st_size > 100
