"""TensorRT has tensors of its own, whose names an input or output may have."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY
from pipeline.stages.build import Build
from pipeline.trt import CAPABILITIES

pytestmark = pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="seen with TensorRT-RTX")


class EverySecond(nn.Module):
    """Its inputs are called as TensorRT calls what it computes of sizes that are quotients."""

    def forward(self, add: Tensor, sub: Tensor) -> Tensor:
        """[N, 4], [N, 4] -> [N, 4]"""
        rows = add.clone()
        rows[::2] = sub[::2] * 2
        return rows + sub


TWICE = "aten.mul.Tensor"
"""Runs in PyTorch, so that an engine gets rows whose number is a quotient."""
ROWS = ({0: Dim("rows", min=2, max=8)},) * 2


def compiled(*builds: Any) -> Any:
    given = (torch.randn(5, 4), torch.randn(5, 4))
    stages = pipeline.default(min_block_size=1, torch_executed_ops=[TWICE], compute_capabilities=(CAPABILITY,))
    compile = stages.replace("build", builds[0]) if builds else stages
    return compile(EverySecond().eval(), args=given, dynamic_shapes=ROWS)


def test_a_taken_name_is_another_in_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = compiled()
    engine, network = made.engines[-1], made.networks[-1]
    assert dict(engine.bindings) == {"sub": "sub_", "add": "add_"}
    assert {tensor.name for tensor in network.inputs} == {"add", "sub", "mul"}
    assert not [record for record in caplog.records if record.name.startswith("pipeline")]


def test_other_processes_and_kept_programs_know_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        beside = compiled(Build(executor))
    made = compiled()
    made.save(tmp_path / "kept.trtp")
    again = pipeline.load(tmp_path / "kept.trtp")
    assert beside.engines[-1].bindings == made.engines[-1].bindings == again.engines[-1].bindings != {}


def test_an_engine_store_knows_it(tmp_path: Path) -> None:
    store = pipeline.DiskStore(tmp_path)
    made, again = (compiled(pipeline.cached(store)) for _ in range(2))
    assert again.engines[-1].digest == made.engines[-1].digest
    assert again.engines[-1].bindings == made.engines[-1].bindings != {}


class Diagonal(nn.Module):
    """A write to a diagonal in PyTorch: an engine reads ``min(rows, 7)`` elements, beside tensors with named rows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """[N, 7], [N, 3] -> [N, 3]"""
        x, y = x * 2, y * x.sum()
        x.diagonal().fill_(1.0)
        return y + x[:, :3].exp()


def test_a_dim_without_a_name_beside_named_ones() -> None:
    rows = Dim("rows", min=2, max=4)
    compile = pipeline.default(min_block_size=1, torch_executed_ops=["aten.fill.Scalar"])
    made = compile(Diagonal(), (torch.randn(2, 7), torch.randn(2, 3)), dynamic_shapes=({0: rows}, {0: rows}))
    (given,) = (port for port in made.networks[-1].inputs if port.name == "fill_")
    assert str(given).endswith("float32[-1]"), "the network has no name for it; the engine was built all the same"
