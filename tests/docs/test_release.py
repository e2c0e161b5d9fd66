"""`make release`: an sdist and a wheel that are built without a warning and hold what belongs there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pipeline

ROOT = Path(__file__).parents[2]


def test_sdist_and_wheel_are_built_without_a_warning(tmp_path: Path) -> None:
    """The script checks them; without the installation in an empty environment, which takes minutes."""
    command = [sys.executable, str(ROOT / ".ci/release.py"), "--no-install", str(tmp_path / "dist")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = [line.split("/")[-1] for line in done.stdout.splitlines()]
    stem = f"tensorrt_pipeline-{pipeline.__version__}"
    assert names == [f"{stem}.tar.gz", f"{stem}-py3-none-any.whl"]
