"""The program of docs/deploy.md asks TensorRT for what it has to: here a stand-in that computes by the reference."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import pipeline
from pipeline.trt import trt
from tests.docs.deploy_program import kept, program
from tests.runtime.fake_engine import FakeConfig, FakeContext, FakeEngine


class Stand(FakeEngine):
    """An engine that makes its context, and the configuration of it, itself."""

    config = FakeConfig()

    def create_execution_context(self, *nothing: Any) -> FakeContext:
        """A context."""
        return FakeContext(self, self.config)


def library(made: pipeline.Compiled) -> Any:
    """A module in the place of TensorRT's, whose runtime takes the plan of a program and no other."""
    (network,), (engine,) = made.networks, made.engines
    inputs = {tensor.name: (tensor.dtype, tensor.shape) for tensor in network.inputs}
    outputs = {tensor.name: (tensor.dtype, tensor.shape) for tensor in network.outputs}
    run = made.module(executor="reference")

    def deserialize(plan: bytes) -> Stand:
        assert plan == bytes(engine)
        return Stand(inputs, outputs, lambda x: [run(x)])

    stand: Any = ModuleType("tensorrt_rtx")
    stand.Logger = trt.Logger
    stand.Runtime = lambda logger: SimpleNamespace(deserialize_cuda_engine=deserialize)
    return stand


def test_the_program_has_15_lines() -> None:
    assert len(program().splitlines()) == 15


def test_an_engine_of_a_file_runs_without_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = kept(tmp_path / "model.trtp")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", library(made))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    names: dict[str, Any] = {}
    exec(program().replace('"cuda"', '"cpu"'), names)
    torch.testing.assert_close(names["tensors"]["output"], made.module(executor="reference")(torch.ones(5, 8)))
    assert [call[0] for call in names["context"].calls].count("execute_async_v3") == 1
    assert "tensor(" in capsys.readouterr().out
