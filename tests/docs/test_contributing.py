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
NEW = "Add a pass"
"""The section about something new; what the others show is there, and is taken out of the copy first."""


@frozen
class Block:
    """Code for a file of the copy, and where in it: at its end, before a line, instead of one, or in a new file."""

    path: str
    place: str
    code: str

    def applied(self, text: str) -> str:
        """The file with the code."""
        if self.place == "a new file":
            assert not text
            return self.code
        if self.place == "at the end":
            return f"{text}\n\n{self.code}"
        assert text.count(self.line) == 1, f"{self.path} has no line, or several, that begins {self.line!r}"
        kept = self.line if self.place.startswith("before") else ""
        return text.replace(self.line, f"{self.code}{kept}" if kept else self.code.rstrip("\n"))

    @property
    def line(self) -> str:
        """How the line begins before which, or instead of which, the code stands."""
        return self.place.partition("`")[2].rstrip("`").replace("\\n", "\n")


def blocks(section: str) -> list[Block]:
    """The blocks of a section that go to files."""
    found = re.findall(r"^```python\n# ([\w/.]+): ([^\n]+)\n(.*?)^```$", section, re.M | re.S)
    return [Block(*each) for each in found]


def commands(section: str) -> list[str]:
    """The commands of a section, in order."""
    text = "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S))
    return text.splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what is in the checkout, without what tools have left there."""
    left_out = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=left_out))


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command as a newcomer types it, in the copy and of the copy."""
    words, _, target = command.partition(" > ")
    first, *rest = shlex.split(words)
    module = {"pytest": ["pytest", "-q", "-p", "no:cacheprovider"], "pipeline": ["pipeline"]}[first]
    done = subprocess.run(
        [sys.executable, "-m", *module, *rest],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    if target:
        (folder / target).write_text(done.stdout, encoding="utf-8")
    return done


def apply(block: Block, folder: Path) -> None:
    """Put a block into its file of the copy."""
    path = folder / block.path
    path.write_text(block.applied(path.read_text(encoding="utf-8") if path.exists() else ""), encoding="utf-8")


def take_out(block: Block, folder: Path) -> None:
    """Take a block that is there out of its file of the copy."""
    path = folder / block.path
    text = path.read_text(encoding="utf-8")
    assert text.count(block.code) == 1, f"{block.path} has not what the page shows:\n{block.code}"
    path.write_text(text.replace(block.code, ""), encoding="utf-8")


def test_the_tour_has_three_stops() -> None:
    assert len(SECTIONS) == 3 and NEW in SECTIONS


@pytest.mark.parametrize("title", SECTIONS)
def test_each_takes_at_most_three_files(title: str) -> None:
    written = [command.partition(" > ")[2] for command in commands(SECTIONS[title]) if " > " in command]
    assert 1 <= len({*(block.path for block in blocks(SECTIONS[title])), *written}) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_the_steps_work_in_a_clean_checkout(title: str, checkout: Path) -> None:
    section, tests = SECTIONS[title], [c for c in commands(SECTIONS[title]) if c.startswith("pytest")]
    if title != NEW:
        for block in blocks(section):
            take_out(block, checkout)
    assert tests and run(tests[0], checkout).returncode != 0, "the first test fails, or is not there, before the steps"
    for block in blocks(section):
        apply(block, checkout)
    for command in commands(section):
        done = run(command, checkout)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
