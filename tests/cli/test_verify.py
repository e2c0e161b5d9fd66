"""`pipeline compile --verify` and `pipeline bisect`: what they print, write and exit with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.cli.commands import main
from tests.cli.test_cli import report
from tests.meta.executor_faults import factor, planted

HERE = "tests.cli.test_verify"
gpu = torch.cuda.is_available()
reference_only = pytest.mark.skipif(
    gpu, reason="faults are planted in the reference executor, which a GPU does not use"
)


def model() -> Any:
    """A model with a softmax, and its inputs."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=8)
    layers = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 2)
    return nn.Sequential(*layers), (torch.ones(2, 4),), {}, ({0: batch},)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", [["--verify", f"{HERE}:model"], [f"{HERE}:model", "--verify=heal"]])
def test_the_agreement_is_printed_and_written(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", *words, "-o", "out"]) == 0
    assert "verification: agrees with eager" in capsys.readouterr().out
    data = report(folder / "out")
    rows = data["verification"]["rows"]
    samples = ["smallest", "optimal", "largest"]
    assert [(row["source"], row["sample"]) for row in rows] == [
        (of, at) for of in ("graph", "module") for at in samples
    ]
    assert data["verification"]["module"] == ""
    assert all(row["error"] <= row["bound"] for row in rows) and data["healed"] == []
    assert data["verification"]["sizes"]["largest"] == {"input.shape[0]": 8}
    assert "verify" in data["seconds"]


def test_without_verify_there_is_none(folder: Path) -> None:
    assert main(["compile", f"{HERE}:model", "-o", "out"]) == 0
    assert report(folder / "out")["verification"] is None


@reference_only
def test_what_does_not_agree_fails_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with planted(factor, "SOFTMAX"):
        assert main(["compile", f"{HERE}:model", "--verify", "-o", "out"]) == 1
    assert "output, largest: WRONG" in capsys.readouterr().err
    assert not (folder / "out").exists()


@reference_only
def test_a_warning_is_a_line_on_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with planted(factor, "SOFTMAX"):
        assert main(["compile", f"{HERE}:model", "--verify=warn", "-o", "out"]) == 0
    printed = capsys.readouterr()
    assert "does not agree with eager" in printed.out
    assert [line for line in printed.err.splitlines() if line.startswith("pipeline: 3 of 3 outputs are wrong")]


@reference_only
def test_what_is_healed_is_in_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with planted(factor, "SOFTMAX"):
        assert main(["compile", f"{HERE}:model", "--verify=heal", "-o", "out"]) == 0
    (row,) = report(folder / "out")["healed"]
    assert row["target"] == "aten.softmax.int" and row["action"] and "engine with this node" in row["reason"]
    assert "healed: " in capsys.readouterr().out


def test_bisect_finds_nothing_where_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", f"{HERE}:model"]) == 0
    assert capsys.readouterr().out.startswith("no operator returns wrong values\nagrees with eager")


@reference_only
def test_bisect_names_the_node_and_writes_the_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with planted(factor, "SOFTMAX"):
        assert main(["bisect", f"{HERE}:model", "-o", "fault.py"]) == 1
    printed = capsys.readouterr().out
    assert "1 fault in" in printed and "aten.softmax.int at node softmax" in printed
    assert "pipeline.verify" in (folder / "fault.py").read_text()


@reference_only
def test_bisect_prints_the_script_where_no_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with planted(factor, "SOFTMAX"):
        assert main(["bisect", f"{HERE}:model"]) == 1
    assert "class Fault(torch.nn.Module):" in capsys.readouterr().out


def test_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", f"{HERE}:model", "--verify=explode"]) == 2
    assert "invalid choice" in capsys.readouterr().err
    assert main(["bisect", "nothing.here:model"]) == 2


def test_the_report_is_json_where_an_error_is_infinite() -> None:
    from pipeline.cli.reporting import CompilationReport
    from pipeline.records.agreement import Agreement, OutputAgreement

    row = OutputAgreement("y", "optimal", error=float("inf"))
    text = CompilationReport(
        model="m",
        engines=(),
        converted=0,
        total=0,
        fallbacks=(),
        seconds={},  # type: ignore[arg-type]
        agreement=None,
        settings="",
        versions={},  # type: ignore[arg-type]
        verification=Agreement((row,), "reference"),
    ).as_json()
    assert json.loads(text)["verification"]["rows"][0]["error"] == "inf"
