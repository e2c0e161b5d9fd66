"""The command line, in this process and as a command, used well and misused in every way that was thought of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import nn

import pipeline
from pipeline.cli.commands import main
from pipeline.trt import CAPABILITIES

ROOT = Path(__file__).parents[2]
HERE = "tests.cli.test_cli"
ERROR = 1e-2 if torch.cuda.is_available() else 1e-5  # on a GPU products are TF32


class Net(nn.Module):
    """Two products with an addition between them, and an optional factor by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        """[N, 4] -> [N, 3]"""
        y = self.second(self.first(x) + 1) * 2
        return y if scale is None else y * scale


class Dropping(nn.Module):
    """Has an operator that draws random numbers, which no engine does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return x * 2 + torch.rand_like(x)


@attrs.frozen
class Case:
    """What a factory may give as well: an object with a source's fields."""

    model: nn.Module
    kwargs: dict[str, Any]
    dynamic_shapes: Any = None


INSTANCE = Net()
NUMBER = 3


def with_args() -> Any:
    return Net(), (torch.ones(2, 4),)


def with_kwargs() -> Any:
    return Net(), (), {"x": torch.ones(2, 4), "scale": torch.ones(())}


def dynamic() -> Any:
    return Net(), (torch.ones(2, 4),), {}, {"x": {0: torch.export.Dim("batch", min=1, max=8)}}


def case() -> Case:
    return Case(Net(), {"x": torch.ones(2, 4)}, {"x": {0: torch.export.Dim("batch", min=1, max=8)}})


def dropping() -> Any:
    return Dropping(), (torch.ones(2, 4),)


def rounding() -> Any:
    class Rounding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if float(x.sum()).is_integer() else -x

    return Rounding(), (torch.ones(2, 4),)


def not_a_model() -> Any:
    return {"model": 3}


def bad_args() -> Any:
    return Net(), torch.ones(2, 4)


def bad_kwargs() -> Any:
    return Net(), (), (torch.ones(2, 4),)


def broken() -> Any:
    raise OSError("no weights\nat all")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def exported(folder: Path) -> Path:
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(Net().eval(), (torch.ones(2, 4),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, folder / "net.pt2")
    return folder / "net.pt2"


def report(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return data


@pytest.mark.parametrize("factory", ["with_args", "with_kwargs", "dynamic", "case"])
def test_what_a_factory_gives_is_compiled(factory: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", f"{HERE}:{factory}"]) == 0
    out = folder / f"{factory}.engines"
    assert sorted(p.name for p in out.iterdir()) == ["engine_0.engine", "program.json", "report.json", "report.txt"]
    text = (out / "report.txt").read_text()
    captured = capsys.readouterr()
    assert captured.out == f"{text}written to {factory}.engines\n"
    assert captured.err == ""
    data = report(out)
    assert data["fallbacks"] == []
    assert data["converted"] == data["total"] > 0
    assert data["agreement"]["absolute"] < ERROR
    assert [*data["seconds"]] == ["capture", *pipeline.default().names]
    assert [entry["stage"] for entry in data["ledger"]] == [*data["seconds"]]
    assert data["ledger"][-1]["held"]["plans"] == data["engines"][0]["nbytes"]
    assert "memory at most, in MB above its start: capture" in text
    assert {"pipeline", "torch"} < {*data["versions"]}
    [engine] = data["engines"]
    assert engine["nbytes"] == (out / engine["file"]).stat().st_size
    assert "2 absolute" not in text


def test_inputs_are_described(folder: Path) -> None:
    spec = [f"{HERE}:Net", "--input", "1..2..8x4", "--input", "scale=()"]
    assert main(["compile", *spec, "-o", "out", "--min-block-size", "1", "--no-truncate-double"]) == 0
    data = report(folder / "out")
    assert [i.split(":")[0] for i in data["engines"][0]["inputs"]] == ["x", "scale"]
    assert data["engines"][0]["inputs"][0] == "x: float32[1..2..8, 4]"
    assert data["settings"] == "CompilationSettings(min_block_size=1)"
    assert data["agreement"]["executor"] in ("reference", "tensorrt")


def test_an_instance_is_a_model_too() -> None:
    assert main(["print", f"{HERE}:INSTANCE", "--input", "2x4"]) == 0


def test_a_file_is_compiled(exported: Path, folder: Path) -> None:
    assert main(["compile", "net.pt2", "--no-check"]) == 0
    data = report(folder / "net.engines")
    assert data["agreement"] is None
    assert data["note"] == "--no-check"
    assert main(["compile", str(exported), "--input", "1..4..8x4", "-o", "out"]) == 0
    assert report(folder / "out")["engines"][0]["inputs"][0] == "x: float32[1..4..8, 4]"
    assert report(folder / "out")["agreement"]["absolute"] < ERROR


def test_what_runs_in_pytorch_is_reported(folder: Path) -> None:
    assert main(["compile", f"{HERE}:dynamic", "--torch-executed-ops", "aten.mul", "--min-block-size", "1"]) == 0
    [fallback] = report(folder / "dynamic.engines")["fallbacks"]
    assert fallback["target"] == "aten.mul.Tensor"
    assert "torch_executed_ops" in fallback["reason"]
    assert "in PyTorch:\n  aten.mul.Tensor at node" in (folder / "dynamic.engines" / "report.txt").read_text()


def test_full_compilation_lists_what_is_in_the_way(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", f"{HERE}:dropping", "--require-full-compilation"]) == 1
    error = capsys.readouterr().err
    assert "of 3 nodes would run in PyTorch" in error
    assert "aten.rand" in error
    assert list(folder.iterdir()) == []


def test_a_full_folder_is_left_alone_unless_forced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    assert main(["compile", f"{HERE}:with_args", "-o", "out"]) == 2
    assert "'out' is not empty; pass --force to replace it" in capsys.readouterr().err
    assert [p.name for p in out.iterdir()] == ["precious"]
    assert main(["compile", f"{HERE}:with_args", "-o", "out", "--force"]) == 0
    assert not (out / "precious").exists()
    assert [p.name for p in folder.iterdir()] == ["out"]


def test_an_empty_folder_is_filled(folder: Path) -> None:
    (folder / "out").mkdir()
    assert main(["compile", f"{HERE}:with_args", "-o", "out"]) == 0
    assert (folder / "out" / "report.txt").exists()


def test_nothing_is_left_of_a_failed_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *args: Any, **kwargs: Any) -> int:
        raise OSError(28, "No space left on device")

    (folder / "out").mkdir()
    (folder / "out" / "old").touch()
    monkeypatch.setattr(Path, "write_text", full)
    assert main(["compile", f"{HERE}:with_args", "-o", "out", "--force"]) == 2
    assert [p.name for p in folder.rglob("*")] == ["out", "old"]


MISUSE: dict[str, tuple[list[str], str]] = {
    "no command": ([], "required: COMMAND"),
    "an unknown command": (["build"], "there is no command 'build'; the commands are compile, bisect, support"),
    "no spec": (["compile"], "required: SPEC"),
    "an unknown flag": (["compile", "x.pt2", "--swift"], "unrecognized arguments: --swift"),
    "no such file": (["compile", "no.pt2"], "the file 'no.pt2' does not exist"),
    "not a file": (["compile", "dir.pt2"], "the file 'dir.pt2' does not exist"),
    "a file of another kind": (["compile", "text.pt2"], "'text.pt2' is not a valid file of torch.export.save"),
    "no spec at all": (
        ["compile", "model.pb"],
        "'model.pb' does not name a model: pass FILE.pt2, FILE.pt (of torch.jit.save), FILE.onnx, or package.module:",
    ),
    "no such package": (["compile", "nowhere.models:net"], "the Python module 'nowhere' is neither in"),
    "no such module": (["compile", "tests.nowhere:net"], "the Python module 'tests.nowhere' is neither in"),
    "a module that breaks": (["compile", "breaks:net"], "'breaks' cannot be imported: SyntaxError"),
    "a module that lacks another": (["compile", "lacks:net"], "'lacks' cannot be imported: No module named 'nothing'"),
    "no such factory": (["compile", f"{HERE}:dynamics"], "has no 'dynamics'; did you mean 'dynamic'?"),
    "a factory that breaks": (["compile", f"{HERE}:broken"], "raised OSError: no weights"),
    "a factory with arguments": (["compile", f"{HERE}:report"], "raised TypeError: report() missing 1 required"),
    "not a factory": (["compile", f"{HERE}:NUMBER"], "returns an int; expected an nn.Module"),
    "no model": (["compile", f"{HERE}:not_a_model"], "returns a dict; expected an nn.Module"),
    "args that are none": (["compile", f"{HERE}:bad_args"], "returns a Tensor as args; expected a tuple"),
    "kwargs that are none": (["compile", f"{HERE}:bad_kwargs"], "returns a tuple as kwargs; expected a dict"),
    "no inputs": (["compile", f"{HERE}:Net"], "missing a required argument: 'x'; describe each input with --input"),
    "too many inputs": (["compile", f"{HERE}:Net", *["--input", "2x4"] * 3], "too many positional arguments"),
    "an unknown name": (["compile", f"{HERE}:Net", "--input", "y=2x4"], "Net.forward(x, scale)"),
    "a name twice": (["compile", f"{HERE}:Net", *["--input", "x=2x4"] * 2], "--input has the name x twice"),
    "no sizes": (["compile", f"{HERE}:Net", "--input", "axb"], "'axb' does not describe an input: 'a' is not a size"),
    "a range backwards": (["compile", f"{HERE}:Net", "--input", "8..1x4"], "min <= opt <= max"),
    "no dtype": (["compile", f"{HERE}:Net", "--input", "2x4:float17"], "'float17' is not a dtype"),
    "a wrong shape": (["compile", f"{HERE}:Net", "--input", "2x5"], "torch.export cannot capture Net"),
    "a fixed dim as a range": (["compile", f"{HERE}:Net", "--input", "2x2..4"], "Net specializes dynamic sizes"),
    "what torch.export refuses": (["compile", f"{HERE}:rounding"], "Rounding branches on a tensor's value"),
    "a setting out of range": (["compile", f"{HERE}:with_args", "--min-block-size", "0"], "_size must be an int"),
    "a setting of a wrong type": (["compile", f"{HERE}:with_args", "--min-block-size", "x"], "invalid int value: 'x'"),
    "a word that is none": (["print", f"{HERE}:with_args", "--kernel-specialization", "x"], "must be one of 'none'"),
    "a GPU that is none": (["compile", f"{HERE}:with_args", "--compute-capabilities", "86"], "not of the form"),
    "an operator that is none": (["compile", f"{HERE}:with_args", "--torch-executed-ops", "aten.mull"], "'aten.mull'"),
    "no folder to write to": (
        ["compile", f"{HERE}:with_args", "-o", "a/b"],
        "'b' cannot be written: the folder 'a' does not exist",
    ),
    "a file to write to": (
        ["compile", f"{HERE}:with_args", "-o", "text.pt2"],
        "-o text.pt2: expected a folder, and this is a file",
    ),
    "another size than the file's": (["compile", "net.pt2", "--input", "1..9x4"], "was exported as 1..8x4:float32"),
    "another dtype than the file's": (["compile", "net.pt2", "--input", "1..8x4:f16"], "not 1..8x4:float16"),
    "another rank than the file's": (["compile", "net.pt2", "--input", "3"], "was exported as 1..8x4:float32, not 3:"),
    "more inputs than the file's": (["compile", "net.pt2", *["--input", "1..8x4"] * 2], "of the exported inputs (x)"),
    "another name than the file's": (["compile", "net.pt2", "--input", "y=1..8x4"], "of the exported inputs (x)"),
    "an unknown operator": (["support", "topkk"], "there is no operator 'topkk'; did you mean aten.topk"),
    "printing what is not there": (["print", "no.pt2"], "the file 'no.pt2' does not exist"),
}


@pytest.mark.parametrize("arguments, said", MISUSE.values(), ids=MISUSE)
def test_misuse_gets_one_line_and_leaves_nothing(
    arguments: list[str], said: str, exported: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "text.pt2").write_text("no")
    (folder / "dir.pt2").mkdir()
    (folder / "breaks.py").write_text("def net(:\n")
    (folder / "lacks.py").write_text("import nothing\n")
    before = sorted(folder.rglob("*"))
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith("pipeline: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [p for p in sorted(folder.rglob("*")) if "__pycache__" not in p.parts] == before


def test_networks_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["print", f"{HERE}:dynamic"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("network 'engine_0'\ninput x: float32[-1, 4]\n")
    assert captured.err == ""
    assert main(["print", f"{HERE}:dropping"]) == 0
    assert "in PyTorch: aten.rand" in capsys.readouterr().err


def test_support_lists_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{target} " in listed for target in ("aten.add.Tensor", "operator.getitem"))
    assert main(["support", "--markdown"]) == 0
    engines, _, rest = capsys.readouterr().out.partition("| decomposed by torch |")
    for target in (line.split()[0].removeprefix("aten.") for line in listed.splitlines()[2:]):
        assert f"`{target}`" in engines or f"`{target.rpartition('.')[0]}`" in engines
    assert "`addcmul`" in rest.splitlines()[0]


@pytest.mark.parametrize(
    "name", ["aten.add.Tensor", "aten::add.Tensor", "torch.ops.aten.add.Tensor", "aten.add", "torch.add"]
)
def test_support_tells_of_one_target(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support", name]) == 0
    out = capsys.readouterr().out
    assert "schema: aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor" in out
    assert "dynamic shapes: yes" in out


def test_support_tells_what_is_taken_apart_and_what_is_not_supported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support", "aten.addcmul.default"]) == 0
    assert "decomposition replaces it" in capsys.readouterr().out
    assert main(["support", "aten._fft_c2c"]) == 1
    assert "it runs in PyTorch: it has no converter" in capsys.readouterr().out
    assert main(["support", "randn"]) == 1
    assert "it draws random numbers" in capsys.readouterr().out


def test_version_says_which_tensorrt_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert f"{CAPABILITIES.flavour} {CAPABILITIES.version}" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_are_no_errors(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    assert "pipeline" in capsys.readouterr().out


def test_settings_that_are_words_and_paths_are_taken(folder: Path) -> None:
    flags = ["--kernel-specialization", "eager", "--runtime-cache", "kernels"]
    assert main(["compile", f"{HERE}:with_args", "-o", "out", "--no-check", *flags]) == 0
    wanted = "CompilationSettings(kernel_specialization='eager', runtime_cache='kernels')"
    assert report(folder / "out")["settings"] == wanted
    assert main(["compile", f"{HERE}:with_args", "-o", "off", "--no-check", "--no-runtime-cache"]) == 0
    assert report(folder / "off")["settings"] == "CompilationSettings(runtime_cache=False)"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=path)


MODULE = """
import torch
def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4)), (torch.ones(2, 4),)
"""


def test_as_a_command_it_finds_modules_in_the_folder(folder: Path) -> None:
    (folder / "mine.py").write_text(MODULE)
    done = run("compile", "mine:net", "--min-block-size", "1", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "net.engines" / "engine_0.engine").stat().st_size > 0


def test_as_a_command_it_fails_with_one_line(folder: Path) -> None:
    (folder / "mine.py").write_text(MODULE)
    done = run("compile", "mine:net", "--input", "2x5", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not (folder / "net.engines").exists()


def test_progress_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from pipeline.compose.progress import StageProgress

    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with StageProgress(console) as progress:
        pipeline.default().observed_by(progress)(Net().eval(), args=(torch.ones(2, 4),))
    assert [*progress.seconds] == ["capture", *pipeline.default().names]
    drawn: Callable[[], str] = console.file.getvalue  # type: ignore[attr-defined]
    assert all(name in drawn() for name in progress.seconds)


@pytest.mark.skipif(
    f"torch=={str(torch.__version__).partition('+')[0]}\n" not in (ROOT / "constraints.txt").read_text(),
    reason="the table is of the operators of the torch in constraints.txt",
)
def test_the_table_of_operators_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support", "--markdown"]) == 0
    page = (ROOT / "docs" / "operators.md").read_text()
    assert page == capsys.readouterr().out, "run: pipeline support --markdown > docs/operators.md"
