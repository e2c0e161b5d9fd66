"""The newcomer's tour: its blocks, applied to a clean copy of the checkout, do what docs/contributing.md says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (Add [^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
FOLDERS = ("pipeline", "tests", "docs", "benchmarks", "examples")


@frozen
class Block:
    """Code for a file of the copy, and where in it: before a line, or in a new file."""

    path: str
    place: str
    code: str

    @property
    def is_new(self) -> bool:
        """Whether the block is a file."""
        return self.place == "a new file"

    def applied(self, text: str) -> str:
        """The file with the code."""
        if self.is_new:
            assert not text
            return self.code
        line = self.place.removeprefix("before `").rstrip("`").replace("\\n", "\n")
        assert text.count(line) == 1, f"{self.path} has no line, or several, that begins {line!r}"
        return text.replace(line, f"{self.code}{line}")


def blocks(section: str) -> list[Block]:
    """The blocks of a section that go to files."""
    found = re.findall(r"^```python\n# ([\w/.]+): ([^\n]+)\n(.*?)^```$", section, re.M | re.S)
    return [Block(*each) for each in found]


def commands(section: str) -> list[str]:
    """The commands of a section, in order."""
    return "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)).splitlines()


TESTS = [shlex.split(line)[1:] for section in SECTIONS.values() for line in commands(section) if "pytest" in line]
"""The tests of each section: a file, and perhaps ``-k`` and a word."""


def run(words: list[str], folder: Path, target: str = "") -> str:
    """Run a module of Python in the copy and on the copy; return what it prints. ``target`` is a file for that."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_PROFILE": "quick"},
        capture_output=True,
        text=True,
    )
    if target:
        (folder / target).write_text(done.stdout, encoding="utf-8")
    return done.stdout + done.stderr


def passed(folder: Path) -> tuple[set[str], str]:
    """The files of the tour whose tests all pass in the copy; and what pytest printed. One process runs all."""
    there = [each for each in TESTS if (folder / each[0]).exists()]
    names = [each[2] if len(each) > 1 else Path(each[0]).stem for each in there]
    options = ["pytest", "-q", "-rpfE", "-p", "no:cacheprovider", "-k", " or ".join(names)]
    said = run([*options, *(each[0] for each in there)], folder)
    good, bad = (set(re.findall(rf"^(?:{word}) ([\w/.]+)", said, re.M)) for word in ("PASSED", "FAILED|ERROR"))
    return good - bad, said


def test_each_is_one_place_and_a_test() -> None:
    assert [title.split()[-1] for title in SECTIONS] == ["operator", "pass", "fault", "field"]
    for section in SECTIONS.values():
        assert len([block for block in blocks(section) if not block.path.startswith("tests/")]) == 1


@pytest.mark.slow
def test_the_tour_works_in_a_clean_checkout(tmp_path: Path) -> None:
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "CHANGELOG.md", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    steps = [block for section in SECTIONS.values() for block in blocks(section)]
    for block in steps:
        path = tmp_path / block.path
        if path.exists() and (text := path.read_text(encoding="utf-8")).count(block.code) == 1:
            path.write_text(text.replace(block.code, ""), encoding="utf-8")
    assert not passed(tmp_path)[0], "a test of the tour passes before its steps"
    for block in steps:
        path = tmp_path / block.path
        path.write_text(block.applied(path.read_text("utf-8") if path.exists() else ""), encoding="utf-8")
    for command in (line for section in SECTIONS.values() for line in commands(section) if "pytest" not in line):
        words, _, target = command.removeprefix("python -m ").partition(" > ")
        run(shlex.split(words), tmp_path, target)
    good, said = passed(tmp_path)
    assert good == {each[0] for each in TESTS}, said[-4000:]
    taken_out = [step.path for step in steps if not step.is_new and step.path != "pipeline/program.py"]
    for name in ("docs/operators.md", "docs/known-issues.md", *taken_out):
        assert (tmp_path / name).read_text("utf-8") == (ROOT / name).read_text("utf-8"), f"{name} differs from the page"
