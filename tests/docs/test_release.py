"""`make release` and `make first-hour`: what is built holds what belongs there, and works where nothing else is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

import pipeline

ROOT = Path(__file__).parents[2]
SCRIPTS = ("README.md.py", "own_converter.py")
"""Of all that `make first-hour` runs."""


def run(*command: object) -> str:
    """Run a script of .ci; return what it prints."""
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_works_where_nothing_else_is(tmp_path: Path) -> None:
    """Built without a warning; with the packages of this environment, since installing them takes minutes."""
    lines = run(ROOT / ".ci/release.py", "--no-install", tmp_path / "dist").splitlines()
    stem = f"stagewright-{pipeline.__version__}"
    assert [Path(line).name for line in lines] == [f"{stem}.tar.gz", f"{stem}-py3-none-any.whl"]
    others = Path(torch.__file__).parents[1]
    said = run(ROOT / ".ci/first_hour.py", "--packages", others, "--wheel", lines[1], *SCRIPTS)
    assert [line.partition(":")[0] for line in said.splitlines()] == [*SCRIPTS] and said.count(": runs, ") == 2
