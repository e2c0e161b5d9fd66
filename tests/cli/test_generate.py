"""``pipeline generate``: ids of a prompt go in, ids of new tokens come out."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import torch

from pipeline.cli.commands import main
from pipeline.cli.generate import GROUP

CONFIG = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "eos_token_id": None,
    "bos_token_id": 1,
    "pad_token_id": 0,
}


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the entry points of pyproject.toml, as an installation has them, also under the name before 0.2:
    pip does not remove that one."""
    entries = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    rows = [f"{name} = {target}" for name, target in entries["project"]["entry-points"][GROUP].items()]
    folder = tmp_path_factory.mktemp("site")
    for name in ("tensorrt_pipeline", "stagewright"):
        made = folder / f"{name}-0.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Name: {name}\nVersion: 0\n", encoding="utf-8")
        (made / "entry_points.txt").write_text("\n".join((f"[{GROUP}]", *rows)), encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path


def test_tokens_are_printed_a_line_for_each_prompt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    arguments = ["generate", str(folder), "--prompt-ids", "5,17,2", "--prompt-ids", "9", "--max-new-tokens", "4"]
    assert main(arguments) == 0
    printed = [[int(token) for token in line.split(",")] for line in capsys.readouterr().out.split()]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    ids, mask = torch.tensor([[5, 17, 2], [0, 0, 9]]), torch.tensor([[1, 1, 1], [0, 0, 1]])
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    assert printed == expected[:, 3:].tolist()


def test_beams_are_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    arguments = ["--prompt-ids", "5,17,2", "--prompt-ids", "9,3,4", "--max-new-tokens", "4", "--num-beams", "3"]
    assert main(["generate", str(folder), *arguments]) == 0
    printed = [[int(token) for token in line.split(",")] for line in capsys.readouterr().out.split()]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    ids = torch.tensor([[5, 17, 2], [9, 3, 4]])
    expected = model.generate(ids, attention_mask=ids > 0, max_new_tokens=4, do_sample=False, num_beams=3)
    assert printed == expected[:, 3:].tolist()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt-ids", "5,x"], "integers separated"),
        (["--prompt-ids", "5,99"], "expected ids below 50"),
        (["--prompt-ids", "-5"], "expected token ids of 0 or more"),
        (["--prompt-ids", "5", "--max-new-tokens", "0"], "--max-new-tokens is 0: expected at least 1"),
        (["--prompt-ids", "5", "--num-beams", "0"], "--num-beams is 0: expected at least 1"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = [f"{arguments[0]}={arguments[1]}", *arguments[2:]]
    assert main(["generate", str(folder), *joined]) == 2
    assert words in capsys.readouterr().err


def test_other_models_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "examples.unet:UNet", "--prompt-ids", "5"]) == 2
    assert "decoder-only model of transformers" in capsys.readouterr().err


def test_a_missing_entry_point_is_said(folder: Path, installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for entries in installed.glob("*/entry_points.txt"):
        entries.unlink()
    assert main(["generate", str(folder), "--prompt-ids", "5"]) == 2
    assert "pipeline is installed without its entry point pipeline.generation: install" in capsys.readouterr().err


def test_a_folder_without_a_config_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(tmp_path), "--prompt-ids", "5"]) == 2
    assert "has no config.json" in capsys.readouterr().err
