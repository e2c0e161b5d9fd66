"""The command line with factories, folders and outputs that fail in their own ways: one line, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.cli.commands import main

ROOT = Path(__file__).parents[2]
HERE = "tests.cli.test_misuse"


def net() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),)


def leaving() -> Any:
    sys.exit(7)


def on_meta() -> Any:
    with torch.device("meta"):
        return nn.Linear(4, 4), (torch.ones(2, 4),)


class Interrupted(nn.Module):
    """Ctrl-C comes while the model is captured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Never gives anything."""
        raise KeyboardInterrupt


def interrupted() -> Any:
    return Interrupted(), (torch.ones(2, 4),)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    for name in ("mine.py", "nets/a.pt2", "page.html"):
        (tmp_path / name).touch()
    torch.save({"weight": torch.ones(4)}, tmp_path / "weights.pt")
    (tmp_path / "dangling").symlink_to("/no/such")
    return tmp_path


COMPILE = ["compile", f"{HERE}:net"]
MISUSE: dict[str, tuple[list[str], str]] = {
    "a factory that exits": (["compile", f"{HERE}:leaving"], "leaving raised SystemExit: 7"),
    "a module as a file": (["compile", "mine.py:net"], "SPEC names a module, not a file: write mine:factory"),
    "a file of weights": (
        ["compile", "weights.pt", "--input", "4"],
        "'weights.pt' is a file of torch.save",
    ),
    "a model without weights": (["compile", f"{HERE}:on_meta"], "weight is on the meta device"),
    "memory without end": ([*COMPILE, "--workspace-size", "9" * 30], "workspace_size must be an integer"),
    "streams without end": ([*COMPILE, "--max-aux-streams", "9" * 12], "max_aux_streams must be an integer"),
    "a GPU that is not built for": ([*COMPILE, "--compute-capabilities", "99.0"], "cannot build for 99.0; it builds"),
    "a folder that a link lacks": ([*COMPILE, "-o", "dangling"], "'dangling' cannot be written: the folder '/no' does"),
    "a misspelt command": (["suport"], "plan; did you mean 'support'?"),
    "a misspelt flag of none": (["--verison"], "there is no flag '--verison'; did you mean '--version'?"),
    "a misspelt flag": (["compile", "x.pt2", "--inputs", "4"], "arguments: --inputs 4; did you mean '--input'? (`pipe"),
    "a saved program compiled": (
        ["compile", "x.trtp"],
        "'x.trtp' is a saved program, not a model; use the commands inspect, run",
    ),
    "a saved program of tokens": (
        ["generate", "x.trtp", "--prompt-ids", "1"],
        "call pipeline.load('x.trtp').generate",
    ),
    "a folder of no model": (["generate", ".", "--prompt-ids", "1"], "has no config.json: pass one that"),
    "an output in place of a model": (
        [*COMPILE[:1], "weights.pt", "--save", "weights.pt"],
        "--save weights.pt: the co",
    ),
    "outputs in place of a program": (
        ["run", "weights.pt", "-o", "./weights.pt"],
        "reads this file, and would replace",
    ),
    "outputs in place of an input": (
        ["run", "no.trtp", "--input", "x=weights.pt", "-o", "weights.pt"],
        "would replace it",
    ),
    "the folder that one is in": ([*COMPILE, "-o", ".", "--force"], "-o .: the command runs in this folder, which"),
    "a folder around it": ([*COMPILE, "-o", "..", "--force"], "-o ..: the command runs in this folder, which would"),
    "the folder of the model": (["compile", "nets/a.pt2", "-o", "nets", "--force"], "-o nets: nets/a.pt2 is in this"),
    "a page in place of a page": (["report", "page.html"], "--output page.html: the command reads this file"),
    "a folder to save to": ([*COMPILE, "--save", "."], "'.' cannot be written: it is a folder; name a file in it"),
    "no folder for a script": (["bisect", f"{HERE}:net", "-o", "no/b.py"], "'b.py' cannot be written: the folder"),
    "no such program": (["inspect", "no.trtp"], "the file 'no.trtp' does not exist"),
    "no other program": (["diff", "no.trtp"], "pass two paths, A and B, or one SPEC with --left NAME=VALUE"),
    "no program to draw": (["report", "no.trtp"], "the file or folder 'no.trtp' does not exist"),
    "no repository": (["serve-config", "x.trtp"], "the following arguments are required: -o/--output"),
    "runs that are none": (["profile", "x.trtp", "--runs", "x"], "argument --runs: invalid int value: 'x'"),
    "parentheses": (["print", f"{HERE}:net", "--input", "(2,4)"], "'(2,4)' is not a size; write [NAME=]DIMxDIM"),
    "a device that is none": (
        ["print", f"{HERE}:net", "--input", "2x4@gpu"],
        "a name (cuda, cuda:1, cpu), got 'gpu'",
    ),
    "a precision that is none": (["print", f"{HERE}:net", "--precision", "fp8"], "choose from 'fp32', 'fp16', 'bf16'"),
    "a table of one operator": (["support", "--markdown", "relu"], "--markdown prints the table of all operators"),
    "an operator without a name": (["support", ""], "the operator's name is empty; `pipeline support` lists"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("arguments, said", MISUSE.values(), ids=MISUSE)
def test_misuse_gets_one_line_and_leaves_nothing(
    arguments: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith("pipeline: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(folder.iterdir()) == before


def test_an_interrupt_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    assert main(["compile", f"{HERE}:interrupted", "-o", "out"]) == 130
    assert capsys.readouterr() == ("", "pipeline: interrupted\n")
    assert sorted(folder.iterdir()) == before


def test_a_link_stays_a_link(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    before = sorted(folder.iterdir())
    for force in ([], ["--force"]):
        assert main([*COMPILE, "-o", "link", *force]) == 0
        assert sorted(folder.iterdir()) == before
        assert (folder / "link").is_symlink()
        assert (folder / "real" / "report.txt").exists()


def test_a_pattern_that_means_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["print", *COMPILE[1:], "--precision", "fp16", "--precision-exclude", "head"]) == 0
    assert "autocast: 'head' in exclude matches no operator or module" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_output_that_cannot_be_written() -> None:
    path = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pipeline", "support"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=path)
    assert (done.returncode, done.stderr) == (1, "pipeline: [Errno 28] No space left on device\n")


def test_output_that_nobody_reads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def closed(*_: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("pipeline.cli.compiling.operators_text", closed)
    assert main(["support"]) == 141
    assert capsys.readouterr().err == ""
