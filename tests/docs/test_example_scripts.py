"""Each example of examples/ runs as a script: its checks are its own."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted({path.stem for path in FOLDER.glob("*.py")} - {"__init__", "demo", "models", "unet"})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    importlib.import_module(f"examples.{name}").main()
    assert capsys.readouterr().out and not any(tmp_path.iterdir())


def test_there_are_as_many_as_the_page_says() -> None:
    page = (FOLDER.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) == 15 and all(f"examples/{name}.py" in page for name in SCRIPTS)
