"""Use the wheel as a newcomer does, where nothing else of this repository is: README, each page's code, each example.

    python .ci/first_hour.py [--python PYTHON] [--venv FOLDER] [--packages FOLDER] [--wheel FILE] [NAME ...]

A virtual environment of PYTHON gets the wheel and what it needs; one in FOLDER is used again. `--packages` takes what
it needs from the site-packages of another environment, and installs the wheel alone. README and the pages run from top
to bottom as one script each, commands included, with an empty home, in an empty folder that has the examples beside it.
NAMEs, as README.md.py or llama_generate.py, leave out the others.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/internals/*.md")])
EXAMPLES = sorted(path for path in ROOT.glob("examples/*.py") if "__main__" in path.read_text(encoding="utf-8"))
ELSEWHERE = {
    "torch-tensorrt-names.md": "tables of names; what they replace is not installed",
    "demo.py": "ResNet-50 and BERT-base at full size",
}
NEEDS = {"docs/onnx.md.py": "onnx2fx"}
"""What another environment may lack (`--packages`)."""
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.M | re.S)
COMMAND = "from pipeline.cli import main; assert main({words!r}) == 0"
DRIVER = """
import os, pathlib, runpy, sys, tempfile, time, traceback
import torch
folder, *names = sys.argv[1:]
sys.path[:1] = [folder]
failed = []
for name in names:
    begun = time.time()
    if not (child := os.fork()):
        os.chdir(tempfile.mkdtemp(dir=folder))
        try:
            with open("printed", "w") as printed:
                os.dup2(printed.fileno(), 1)
                runpy.run_path(os.path.join(folder, name), run_name="__main__")
        except BaseException as error:
            if not isinstance(error, SystemExit) or error.code:
                traceback.print_exc()
                os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    failed += [name] * bool(code)
    print(f"{name}: {'FAILED' if code else 'runs'}, {time.time() - begun:.0f} s", flush=True)
sys.exit(f"{', '.join(failed)}: failed" if failed else 0)
"""
"""Run each script in a fork of a process that has imported torch and nothing else."""


def script(page: Path) -> str:
    """Return a page's Python and commands as one script; what belongs into a file of the repository is left out."""
    parts = []
    for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "console":
            parts.append(COMMAND.format(words=shlex.split(code.partition("\n")[0].removeprefix("$ "))[1:]))
        elif not re.match(r"# [\w/]+\.py: ", code):
            parts.append(code)
    return "\n".join(parts)


def scripts() -> dict[str, str]:
    """Return every script by its name: the pages', then the examples."""
    pages = {f"{page.relative_to(ROOT)}.py": script(page) for page in PAGES if page.name not in ELSEWHERE}
    examples = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES if path.name not in ELSEWHERE}
    return {name: text for name, text in {**pages, **examples}.items() if text}


def environment(folder: Path, python: str, wheel: Path, packages: str | None) -> Path:
    """Make a virtual environment with the wheel, or use it again; return its Python."""
    inside = folder / "bin" / "python"
    if not inside.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    install = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if packages:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "others.pth").write_text(packages)
        subprocess.run([*install, "--no-deps", "--force-reinstall", wheel], check=True)
    else:
        subprocess.run([*install, "-c", ROOT / "constraints.txt", f"{wheel}[test,models,onnx]"], check=True)
        subprocess.run([*install, "--no-deps", "--force-reinstall", wheel], check=True)
    return inside


def lacks(python: Path, package: str) -> bool:
    """Return whether an environment does not have a package."""
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode != 0


def try_out(python: Path, empty: Path, names: list[str], *, shared: bool) -> int:
    """Run the scripts of these names, or all, in an empty folder with an empty home; return the exit status.

    shared: leave out those that need what another environment, whose packages are used, does not have.
    """
    every = scripts()
    if unknown := {*names} - {*every}:
        sys.exit(f"there is no script {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    shutil.copytree(ROOT / "examples", empty / "examples")
    (empty / "home").mkdir()
    chosen = [name for name in every if name in names or not names]
    for name in [each for each in chosen if shared and each in NEEDS and lacks(python, NEEDS[each])]:
        print(f"{name}: left out, {NEEDS[name]} is not installed")
        chosen.remove(name)
    for name in chosen:
        (empty / name).parent.mkdir(exist_ok=True, parents=True)
        (empty / name).write_text(every[name], encoding="utf-8")
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "LD_LIBRARY_PATH", "TMPDIR") if key in os.environ}
    command = [python, "-c", DRIVER, empty, *chosen]
    variables = {**kept, "HOME": str(empty / "home"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=empty, env=variables, check=False).returncode


def built(folder: Path) -> Path:
    """Build the wheel as a release does; return the file."""
    subprocess.run([sys.executable, ROOT / ".ci" / "release.py", "--no-install", folder], check=True)
    return next(folder.glob("*.whl"))


def main() -> int:
    """Build, install, run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for option in ("--python", "--venv", "--packages", "--wheel"):
        parser.add_argument(option)
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name) / "empty").mkdir()
        wheel = Path(chosen.wheel).absolute() if chosen.wheel else built(Path(name) / "dist")
        venv = Path(chosen.venv or Path(name) / "venv").absolute()
        python = environment(venv, chosen.python or sys.executable, wheel, chosen.packages)
        return try_out(python, folder, chosen.names, shared=bool(chosen.packages))


if __name__ == "__main__":
    sys.exit(main())
