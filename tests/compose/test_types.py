"""Types reach the user: mypy knows what pipelines take and give in a user's project, and finds its mistakes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "user_project"


@pytest.fixture(scope="module")
def found() -> list[str]:
    """What mypy, as strict as it can be, says of the project: its files alone, as if pipeline was installed."""
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'user_project'}"
    strictly = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", cache]
    done = subprocess.run(
        [*strictly, "right.py", "wrong.py"],
        cwd=PROJECT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def errors(lines: list[str], name: str) -> Iterator[tuple[int, str]]:
    """The line and the code of each error in a file."""
    for line in lines:
        if match := re.fullmatch(rf"{name}:(\d+): error: .*\[([\w-]+)\]", line):
            yield int(match[1]), match[2]


@pytest.mark.slow
def test_types_are_known_in_a_users_project(found: list[str]) -> None:
    assert not list(errors(found, "right.py")), "\n".join(found)


@pytest.mark.slow
def test_mistakes_are_errors(found: list[str]) -> None:
    rows = (PROJECT / "wrong.py").read_text(encoding="utf-8").splitlines()
    due = {(i, line.partition("# expect: ")[2]) for i, line in enumerate(rows, 1) if "# expect: " in line}
    assert due and set(errors(found, "wrong.py")) == due, "\n".join(found)
