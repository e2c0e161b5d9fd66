"""Files of torch.jit.save on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pipeline.cli.commands import main

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file."""
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    torch.jit.save(torch.jit.script(net), tmp_path / "net.pt")  # in training mode, as it often is
    return tmp_path


def test_a_file_is_compiled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.pt", "--input", "1..8x4", "-o", "out", "--save", "net.trtp"]) == 0
    told = capsys.readouterr()
    assert "net.pt: 1 engine, " in told.out
    assert "error against eager" in told.out
    assert "deprecated" not in told.err
    assert "training mode" not in told.err
    assert (folder / "net.trtp").exists()


def test_inputs_have_the_names_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["print", "net.pt", "--input", "input=2x4"]) == 0
    assert "input input: float32[2, 4]" in capsys.readouterr().out
    assert main(["print", "net.pt", "--input", "x=2x4"]) == 2
    assert "Sequential.forward(input) rejects the inputs" in capsys.readouterr().err


def test_a_file_without_inputs_says_which_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.pt", "-o", "out"]) == 2
    assert (
        "Sequential.forward(input) rejects the inputs: missing a required argument: 'input'" in capsys.readouterr().err
    )


def test_two_versions_of_a_file_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "net.ts").write_bytes((folder / "net.pt").read_bytes())
    for name in ("net.pt", "net.ts"):
        assert main(["diff", name, "--input", "2x4", "--right", "optimization_level=3"]) == 0
        assert capsys.readouterr().out == "settings:\n  optimization_level: as by default -> 3\n"
