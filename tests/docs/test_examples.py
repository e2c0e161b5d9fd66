"""What the documentation shows is what happens: its Python runs, its commands print it, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline.cli.commands import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("internals/*.md")])
NOTES = sorted(DOCS.glob("notes/*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def name(path: Path) -> str:
    return path.name


def python_blocks(page: Path) -> list[str]:
    """The page's Python, but for what it says to put into a file (test_contributing)."""
    found = blocks(page.read_text(encoding="utf-8"), "python")
    return [block for block in found if not re.match(r"# [\w/]+\.py: ", block)]


ELSEWHERE = ("architecture.md", "torch-tensorrt-names.md")
"""Pages whose Python has tests of its own: test_architecture, tests/compat/test_migrating."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_blocks(page) and page.name not in ELSEWHERE], ids=name
)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page.name == "onnx.md":
        pytest.importorskip("onnx2fx", reason="the extra onnx is not installed")
    names: dict[str, Any] = {"__name__": "readme"}
    for number, block in enumerate(python_blocks(page)):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    for key, value in list(names.items()):
        if key.startswith("test_"):
            value()
    if page.name == "README.md":
        tolerance = 1e-2 if torch.cuda.is_available() else 1e-5  # on a GPU products are TF32
        torch.testing.assert_close(names["y"], names["model"](names["x"]), rtol=tolerance, atol=tolerance)
        assert [engine.name for engine in names["compiled"].engines] == ["engine_0"]


COMMANDS = [block for page in PAGES for block in blocks(page.read_text(encoding="utf-8"), "console")]


def plain(text: str) -> list[str]:
    """Lines with every number, size and digest alike: those differ from run to run and from machine to machine."""
    text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)
    text = re.sub(r"\d+(\.\d+)*(e-\d+)?(\+\w+)?", "0", text)
    return [re.sub(r"tensorrt\w*|reference", "LIBRARY", line) for line in text.splitlines()]


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.splitlines()[0][2:50])
def test_commands_print_what_is_shown(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    command, _, shown = block.partition("\n")
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "pipeline"
    assert main(arguments) == 0
    printed = iter(plain(capsys.readouterr().out))
    for line in plain(shown):
        assert line == "..." or line in printed, f"not printed, or not here: {line}"


def test_there_are_commands_and_python_to_check() -> None:
    assert len(COMMANDS) >= 3
    assert len(blocks(README, "python")) >= 4


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make (\w+)`", README)):
        assert re.search(rf"^TARGETS = .*\b{target}\b", makefile, re.M)


def test_the_demo_prints_the_rows_that_are_shown() -> None:
    from examples import demo

    [shown] = blocks(README, "text")
    rows = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    wanted = ["engines", "operators in TensorRT", "engine size"]
    wanted += [f"{stage}, s" for stage in ("capture", *pipeline.default().names)]
    assert rows == [*wanted, *(f"relative error, batch {batch} (reference)" for batch in demo.BATCHES)]
