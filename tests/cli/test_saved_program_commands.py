"""Kept programs on the command line: they are inspected and run without the model's code."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pipeline
from pipeline.cli.commands import main


class Heads(nn.Module):
    """Two outputs with keys."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor, factor: int = 2) -> dict[str, object]:
        """[N, 4], [] -> logits [N, 3], hidden_states [[N, 4], [N, 4]]"""
        return {"logits": self.linear(x) * scale, "hidden_states": [x * factor, x + 1]}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A saved program."""
    x = pipeline.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))
    program = pipeline.default()(Heads().eval(), args=(x, torch.tensor(2.0)))
    program.save(tmp_path / "heads.trtp")
    np.save(tmp_path / "x.npy", np.ones((3, 4), np.float32))
    np.save(tmp_path / "scale.npy", np.float32(2))
    return tmp_path / "heads.trtp"


NAMES = ["logits", "hidden_states.0", "hidden_states.1"]


def test_inspect_tells_names_sizes_and_engines(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(kept)]) == 0
    printed = capsys.readouterr().out
    for words in ("format 2", "input  x: float32[", "input  scale: float32[]", "engine engine_0: ", "weights: inside"):
        assert words in printed
    for name in NAMES:
        assert f"output {name}: float32[" in printed
    assert "=1..2..8, 3]" in printed
    assert main(["inspect", str(kept), "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert [output["name"] for output in manifest["outputs"]] == NAMES


def test_run_writes_outputs_by_name(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--input", f"x={tmp_path}/x.npy", "--input", f"scale={tmp_path}/scale.npy"]
    assert main(["run", str(kept), *given, "-o", str(tmp_path / "out.npz")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "logits: float32[3, 3]"
    found = np.load(tmp_path / "out.npz")
    expected = pipeline.load(kept)(torch.ones(3, 4), torch.tensor(2.0))
    assert sorted(found) == sorted(NAMES)
    np.testing.assert_array_equal(found["logits"], expected["logits"].cpu())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["run", "{kept}"], "--input x=FILE.npy is missing; the program's inputs are x: float32["),
        (["run", "{kept}", "--input", "y=1"], "has no input 'y', only x, scale"),
        (["run", "{kept}", "--input", "x"], "expected NAME=FILE.npy"),
        (["run", "{kept}", "--input", "x={folder}/none.npy", "--input", "scale={folder}/scale.npy"], "cannot be read"),
        (["run", "{kept}", "--input", "x={kept}", "--input", "scale={folder}/scale.npy"], "x: '"),
        (["run", "{kept}", "--input", "x={folder}/scale.npy", "--input", "scale={folder}/scale.npy"], "rank"),
        (["run", "{kept}", "-o", "{folder}/none/out.npz"], "cannot be written: the folder"),
        (["inspect", "{folder}/none"], "the file "),
    ],
)
def test_misuse_is_one_line(options: list[str], words: str, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([text.format(kept=kept, folder=kept.parent) for text in options]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_a_damaged_file_is_an_error(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept.write_bytes(kept.read_bytes()[:-10])
    for command in ("inspect", "run"):
        assert main([command, str(kept)]) == 1
        assert "is truncated or was altered" in capsys.readouterr().err


def test_compile_keeps_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save = tmp_path / "net.trtp"
    options = ["--input", "2x4", "-o", str(tmp_path / "net.engines"), "--save", str(save), "--no-check"]
    assert main(["compile", "tests.cli.test_saved_program_commands:Net", *options]) == 0
    assert f"saved to {save}" in capsys.readouterr().out
    assert pipeline.load(save)(torch.ones(2, 4)).shape == (2, 3)
    report = json.loads((tmp_path / "net.engines" / "report.json").read_text())
    assert report["outputs"] == ["output"]
    assert report["engines"][0]["outputs"] == ["output: float32[2, 3]"]


class Net(nn.Module):
    """A layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 3]"""
        return torch.softmax(self.linear(x), -1)


def small() -> nn.Module:
    """A model for the command line."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def test_compile_takes_engines_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["compile", f"{__name__}:small", "--input", "2x4", "--no-check", "--force", "-o", "out", "--cache"]
    engine, caches = tmp_path / "out" / "engine_0.engine", ["--engine-cache-dir", "engines"]
    assert main([*command, *caches]) == 0
    (kept,) = (tmp_path / "engines").glob("*.engine")
    first = engine.read_bytes()
    assert kept.read_bytes().startswith(first)
    assert "cache_built_engines=True, reuse_cached_engines=True" in capsys.readouterr().out
    again = importlib.import_module("pipeline.stages.build")
    monkeypatch.setattr(again, "serialize", lambda *args: pytest.fail("it is built again"))
    assert main([*command, *caches]) == 0
    assert engine.read_bytes() == first
    assert main([*command[:-1], "--reuse-cached-engines", *caches]) == 0


def test_an_input_has_any_byte_order_and_is_given_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline.default()(small(), (torch.zeros(2, 4),)).save("p.trtp")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.save("native.npy", x)
    np.save("big.npy", x.astype(">f4")[::-1])
    np.save("reversed.npy", x[::-1].copy())
    for name in ("big", "reversed"):
        assert main(["run", "p.trtp", "--input", f"input={name}.npy", "-o", f"{name}.npz"]) == 0
    outputs = [np.load(f"{name}.npz")["output"] for name in ("big", "reversed")]
    np.testing.assert_array_equal(*outputs)
    assert main(["run", "p.trtp", "--input", "input=big.npy", "--input", "input=native.npy"]) == 2
    assert "--input input is given twice, as 'big.npy' and 'native.npy': pass it once" in capsys.readouterr().err
