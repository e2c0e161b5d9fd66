"""Build the sdist, and the wheel from it, in dist/; check both, the wheel in an environment that has nothing else.

    python .ci/release.py [--no-install] [FOLDER]

FOLDER is dist/ by default, and is emptied first. A warning of the build is an error. first_hour.py checks the wheel: it
runs README.md from top to bottom.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = Path(next((word for word in sys.argv[1:] if not word.startswith("-")), ROOT / "dist")).absolute()
BUILD = "from setuptools import build_meta as b; import sys; getattr(b, sys.argv[1])(sys.argv[2])"
IN_SDIST = ("LICENSE", "NOTICE", "constraints.txt", "CHANGELOG.md", "tests/conftest.py", "docs/index.md", ".ci/run")
IN_WHEEL = ("pipeline/py.typed", "pipeline/viewing/assets/", "licenses/LICENSE", "licenses/NOTICE")


def run(*command: object, cwd: Path, **env: str) -> str:
    """Run a command; return what it prints, or end with it."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))[:200]} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def built(kind: str, source: Path) -> Path:
    """Build in a folder that has the sources; return the file. Warnings end the release."""
    before = {*DIST.iterdir()}
    said = run(sys.executable, "-c", BUILD, f"build_{kind}", DIST, cwd=source, PYTHONDONTWRITEBYTECODE="")
    if told := [line for line in said.splitlines() if re.search(r"warning|deprecat", line, re.I)]:
        sys.exit(f"the build of the {kind} warns:\n" + "\n".join(told))
    (made,) = {*DIST.iterdir()} - before
    return made


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack the sdist; return its folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


def check(names: list[str], needed: tuple[str, ...], what: Path) -> None:
    """End the release if a file is missing, or one is there that belongs to no distribution."""
    if missing := [part for part in needed if not any(part in name for name in names)]:
        sys.exit(f"{what.name} lacks {', '.join(missing)}")
    if foreign := [name for name in names if re.search(r"__pycache__|\.(pyc|engine|plan)$", name)]:
        sys.exit(f"{what.name} has {foreign[0]}")


def main() -> None:
    """Build and check a release."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("first", "second"):
            (folder / part).mkdir()
        copy = folder / "first" / "source"
        files = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
        for file in filter(lambda file: (ROOT / file).is_file(), files):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, copy / file)
        sdist = built("sdist", copy)
        wheel = built("wheel", unpacked(sdist, folder / "second"))
        with tarfile.open(sdist) as archive:
            check(archive.getnames(), IN_SDIST, sdist)
        check(zipfile.ZipFile(wheel).namelist(), IN_WHEEL, wheel)
        if "--no-install" not in sys.argv:
            print(run(sys.executable, ROOT / ".ci" / "first_hour.py", "--wheel", wheel, "README.md.py", cwd=folder))
    print(f"{sdist}\n{wheel}")


if __name__ == "__main__":
    main()
