"""docs/architecture.md shows a model after each stage as it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pipeline
from tests.docs.test_examples import blocks, plain

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_model_prints_as_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [line for block in blocks(PAGE, "text") for line in plain(block) if line != "..."]
    assert len(shown) > 15
    names: dict[str, Any] = {"__name__": "architecture"}
    for block in blocks(PAGE, "python"):
        exec(compile(block, "architecture.md", "exec"), names)
    printed = iter(plain(capsys.readouterr().out))
    for line in shown:
        assert line in printed, f"not printed, or not here: {line}"


def test_every_stage_has_its_row() -> None:
    table = PAGE.partition("| stage | returns | does |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == ["capture", *pipeline.default().names]
