"""``--precision`` and ``--precision-exclude`` of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.cli.commands import main

SPEC = ["tests.cli.test_precision:factory", "--min-block-size", "1"]


class Net(nn.Module):
    """Two layers, of which the second is to be left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 3]"""
        return self.head(self.body(x).relu())


def factory() -> Any:
    return Net(), (torch.ones(2, 4),)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_precision_is_a_stage_of_the_pipeline(folder: Path) -> None:
    assert main(["compile", *SPEC, "-o", "half", "--precision", "fp16"]) == 0
    data = json.loads((folder / "half/report.json").read_text())
    assert data["precision"] == "fp16" and data["dtypes"]["float16"] > 0
    assert "autocast" in data["seconds"]
    assert data["agreement"]["absolute"] < 1e-2
    assert all("float32" in port for engine in data["engines"] for port in (*engine["inputs"], *engine["outputs"]))
    assert (
        f"precision fp16: {data['dtypes']['float16']} operators in float16" in (folder / "half/report.txt").read_text()
    )


def test_exclusions_are_patterns_of_modules_and_operators(capsys: pytest.CaptureFixture[str]) -> None:
    exclude = ["--precision-exclude", "*.head", "--precision-exclude", "aten.relu"]
    assert main(["print", *SPEC, "--precision", "bf16", *exclude]) == 0
    text = capsys.readouterr().out
    assert "weight body_weight_bfloat16: bfloat16[8, 4]" in text
    assert "weight head.weight: float32[3, 8]" in text
    assert "'relu' (body/linear_float32)" in text or "relu: float32" in text


def test_exclusions_need_a_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", *SPEC, "--precision-exclude", "head"]) == 2
    assert "--precision-exclude needs --precision fp16 or bf16" in capsys.readouterr().err
