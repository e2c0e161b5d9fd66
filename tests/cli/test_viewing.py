"""``pipeline report``, ``diff``, ``plan`` and ``profile``: what they print and write, and say of wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pipeline.cli.commands import main
from tests.viewing.models import fallbacks

UNET = ["examples.unet:UNet", "--input", "1..8x3x32x32"]
MIXED = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.linalg.svdvals(self.linear(x).relu())

def net():
    return Net(), (torch.ones(3, 4),)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mixed_net.py").write_text(MIXED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def ran(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(words) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_a_plan_says_what_would_be_built(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ran(capsys, "plan", "mixed_net:net", "--min-block-size", "1", "-o", "plan.html")
    assert "mixed_net:net: 1 engine would be built, 2 of 3 operators in TensorRT" in text
    assert "engine engine_0: 2 operators, weights 80 bytes" in text
    assert "in PyTorch: aten._linalg_svd.default at node" in text
    assert "mixed_net.py:" in text
    assert "PyTorch torch_1: 1 operator, weights 0 bytes" in text
    assert "cut engine_0 -> torch_1: 48 bytes" in text
    assert "settings: min_block_size=1" in text
    assert "capture " in text
    assert "build " not in text.partition("seconds:")[2]
    assert not [path for path in folder.iterdir() if path.suffix == ".engine"]
    assert "would" not in (folder / "plan.html").read_text().partition("<title>")[2][:60]


def test_a_plan_that_must_be_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ran(capsys, "plan", "mixed_net:net", "--require-full-compilation", code=1)
    assert "would run in PyTorch" in text


def test_report_and_diff_of_what_compile_writes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--min-block-size", "1", "--no-check"]
    ran(capsys, "compile", "mixed_net:net", *small, "-o", "one", "--save", "one.trtp")
    ran(capsys, "compile", "mixed_net:net", *small, "-o", "two", "--torch-executed-ops", "aten.relu.default")
    assert json.loads((folder / "one" / "program.json").read_text())["program"]["title"] == "mixed_net:net"
    assert ran(capsys, "report", "one", "-o", "one.html", "--title", "Mine") == "written to one.html\n"
    assert "<title>Mine" in (folder / "one.html").read_text()
    assert ran(capsys, "report", "one.trtp") == "written to one.html\n"
    assert ran(capsys, "diff", "one", "one.trtp") == ""
    assert ran(capsys, "diff", "one", "one/program.json") == ""
    text = ran(capsys, "diff", "one", "two", "-o", "diff.html")
    assert "relu (aten.relu.default): TensorRT -> PyTorch" in text
    assert "torch_executed_ops" in text
    assert '"difference":[{' in (folder / "diff.html").read_text()
    assert ran(capsys, "diff", "diff.html", "two") == ""


def test_diff_of_two_versions_of_a_setting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["diff", "mixed_net:net", "--min-block-size", "1"]
    assert ran(capsys, *command, "--left", "precision=fp32", "--right", "optimization_level=3") == (
        "settings:\n  optimization_level: as by default -> 3\n"
    )
    text = ran(capsys, *command, "--right", "precision=fp16")
    assert "settings:\n  precision: fp32 -> fp16\n" in text
    assert "float32[3, 4] -> float16[3, 4]" in text
    assert "kernels:" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "none.trtp"], "the file or folder 'none.trtp' does not exist"),
        (["report", ".", "-o", "x.html"], "has no program.json"),
        (["report", "mixed_net.py"], "not a saved program"),
        (["diff", "a", "b", "--left", "x=1"], "leave the second path, B, out"),
        (["diff", "mixed_net:net"], "pass two paths, A and B"),
        (["diff", "mixed_net:net", "--left", "precision"], "write NAME=VALUE"),
        (["diff", "mixed_net:net", "--left", "none=3"], "--none"),
        (["diff", "mixed_net.py", "--left", "precision=fp16"], "is not the SPEC"),
        (["plan", "mixed_net:net", "-o", "none/x.html"], "cannot be written: the folder"),
        (["profile", "none.trtp"], "the file 'none.trtp' does not exist"),
        (["profile", "mixed_net.py", "--runs", "0"], "at least 1"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(words) in (1, 2)
    assert said in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_profile_needs_a_gpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fallbacks().save("net.trtp")
    assert "net.trtp needs a GPU, but torch finds none on this machine" in ran(capsys, "profile", "net.trtp", code=1)


def test_inputs_of_a_profile_are_random_where_they_are_left_out() -> None:
    from pipeline.cli.saved_program_commands import inputs_in_order

    [x] = inputs_in_order(fallbacks().program, [])
    assert (x.shape, x.dtype) == ((4, 8), torch.float32)
