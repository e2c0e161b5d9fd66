"""The mistakes of the first hour, each with the message that says what to write instead."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

import pipeline
from pipeline.artifact.tensors import safetensors_parts_and_size
from pipeline.cli import main
from pipeline.testing import CheckError, check_converter
from pipeline.trt import trt

aten = torch.ops.aten
X = torch.ones(4, 8)
NET = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval().requires_grad_(False)


def test_short_names_of_dtypes() -> None:
    assert pipeline.Input.parse("2x4:fp16") == pipeline.Input((2, 4), dtype=torch.float16)


def returning(what: Callable[[Any], Any]) -> pipeline.Compiled:
    """Compile an activation with a converter of one's own that returns this for its layer."""

    @pipeline.dynamo_tensorrt_converter(aten.relu.default)
    def relu(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return what(ctx.net.add_activation(args[0], trt.ActivationType.RELU))

    return pipeline.compile(nn.ReLU(), (X,), registry=pipeline.DYNAMO_CONVERTERS.override(relu))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda layer: layer, r"returned an IActivationLayer, expected a tensor: return layer\.get_output\(0\)"),
        (lambda layer: None, "returned None, expected a tensor: end it with return"),
        (lambda layer: [layer.get_output(0)], "returned a list, expected a tensor: return its element"),
    ],
)
def test_what_a_converter_returns(what: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(pipeline.ConversionError, match=rf"{said}\n  hint: run it .*, or correct the converter"):
        returning(what)


@pipeline.dynamo_tensorrt_converter(aten.relu.default, supports_dynamic_shapes=True)
def wrong_relu(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """A converter that computes something else."""
    return ctx.net.add_activation(args[0], trt.ActivationType.SIGMOID).get_output(0)


def test_the_snippet_of_a_converter_fails_as_the_check_did() -> None:
    with pytest.raises(CheckError) as caught:
        check_converter(wrong_relu)
    snippet = str(caught.value).split("\n\n")[-1]
    assert "override(wrong_relu)" in snippet
    with pytest.raises(CheckError):
        exec(snippet, {"wrong_relu": wrong_relu})


FOREIGN: Final[Mapping[str, Callable[[Path], object]]] = {
    "torch.save": lambda path: torch.save(NET.state_dict(), path),
    "torch.jit.save": lambda path: torch.jit.trace(NET, X).save(path),
    "torch.export.save": lambda path: torch.export.save(torch.export.export(NET, (X,)), path.with_suffix(".pt2")),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("writer", FOREIGN)
def test_files_of_torch_are_named(writer: str, tmp_path: Path) -> None:
    FOREIGN[writer](tmp_path / "model.pt")
    (path,) = tmp_path.iterdir()
    with pytest.raises(pipeline.ArtifactError, match=r"was saved by torch, .*\n  hint: read it with torch\.load"):
        pipeline.load(path)


@pytest.fixture(scope="module")
def compiled() -> pipeline.Compiled:
    return pipeline.compile(NET, (X,))


def test_places_that_are_no_files(compiled: pipeline.Compiled, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is a folder: name a file in it") as folder:
        compiled.save(tmp_path)
    assert folder.value.filename == str(tmp_path)
    with pytest.raises(OSError, match=r"there is no folder to write x\.trtp to"):
        compiled.save(tmp_path / "none" / "x.trtp")
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(OSError, match="is not a file"):
        compiled.save(tmp_path / "link")


def test_adapters_are_read_from_a_file_or_folder(compiled: pipeline.Compiled, tmp_path: Path) -> None:
    pair = {"0.lora_A.weight": torch.ones(2, 8), "0.lora_B.weight": torch.ones(4, 2)}
    (path := tmp_path / "adapter_model.safetensors").touch()
    with path.open("wb") as file:
        file.writelines(safetensors_parts_and_size(pair)[0])
    same = [compiled.with_lora(each)(X) for each in (pair, path, str(tmp_path))]
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])
    (tmp_path / "other.bin").write_bytes(b"nothing like that")
    with pytest.raises(pipeline.ArtifactError, match=r"other\.bin is not a safetensors file"):
        compiled.with_lora(tmp_path / "other.bin")
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        compiled.with_lora(tmp_path / "none.safetensors")


def test_ranges_of_one_size_that_differ_are_told(caplog: pytest.LogCaptureFixture) -> None:
    class Both(nn.Module):
        """A sum, for which both inputs have as many rows."""

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    rows = [pipeline.Input(min_shape=(low, 4), opt_shape=(4, 4), max_shape=(high, 4)) for low, high in ((1, 8), (2, 9))]
    pipeline.capture(Both(), (rows[0], rows[0]))
    assert not _told(caplog)
    pipeline.capture(Both(), tuple(rows))
    assert _told(caplog) == ["inputs of equal size have the ranges 1 to 8 and 2 to 9: the size must be in both ranges"]


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package warned of."""
    ours = (each for each in caplog.records if each.name.startswith("pipeline"))
    return [each.getMessage() for each in ours if each.levelno >= logging.WARNING]


COMMANDS: Final[Mapping[str, tuple[list[str], str]]] = {
    "a pickled model": (["compile", "whole.pt"], "is a file of torch.save, which contains no graph: pass a function"),
    "a cache that is too short": (
        ["generate", "config", "--prompt-ids", "1,2,3,4,5,6", "--max-cache-len", "4"],
        "max_prompt_len is 6: expected at most max_cache_len, 4",
    ),
}


@pytest.mark.parametrize(("words", "said"), COMMANDS.values(), ids=COMMANDS)
def test_commands_say_it_in_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(NET, "whole.pt")
    shutil.copytree(Path(__file__).parent / "config", "config")
    assert main(words) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pipeline: ")]
    assert said in line


def test_a_missing_package_is_named_with_an_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "".join(path.read_text(encoding="utf-8") for path in (root / "pipeline").rglob("*.py"))
    needed = set(re.findall(r'\brequire_package\("(\w+)", "(\w+)"\)', code))
    assert {("hypothesis", "test"), ("transformers", "transformers"), ("fsspec", "fsspec")} <= needed
    for package, extra in needed:
        assert any(row.startswith(package) for row in extras[extra])
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=rf'{package} is not installed: pip install "stagewright\[{extra}\]"'):
            pipeline.errors.require_package(package, extra)
    pages = "".join(path.read_text(encoding="utf-8") for path in (root / "README.md", *root.glob("docs/*.md")))
    assert {*re.findall(r"stagewright\[(\w+)\]", code + pages)} <= {*extras}
