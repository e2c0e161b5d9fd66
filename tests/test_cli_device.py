"""``--device`` of the command line: an engine for a GPU elsewhere is built of the graph of that GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.cli.commands import main

SPEC = ["tests.test_cli_device:factory", "--min-block-size", "1"]


class ByDevice(nn.Module):
    """A model with a branch for GPUs, where it gives the same by another operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return x.exp() * x.exp() if x.is_cuda else (2 * x).exp()


def factory() -> Any:
    return ByDevice(), (torch.ones(2, 4),)


def test_the_networks_are_a_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    printed = {}
    for device in ("cpu", "cuda"):
        assert main(["print", *SPEC, "--device", device]) == 0
        printed[device] = capsys.readouterr().out
    assert printed["cpu"] != printed["cuda"]


def test_what_is_compiled_agrees_with_eager(tmp_path: Path) -> None:
    assert main(["compile", *SPEC, "-o", str(tmp_path / "out"), "--device", "cuda"]) == 0
    data = json.loads((tmp_path / "out/report.json").read_text())
    assert data["agreement"]["absolute"] < 1e-5


def test_other_devices_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["print", *SPEC, "--device", "cuda:1"]) == 2
    assert "device must be 'cuda', 'cpu' or None" in capsys.readouterr().err
