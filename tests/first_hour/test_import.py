"""``import pipeline`` and the light commands import nothing before it is needed."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline
from pipeline import _PLACES
from pipeline.cli.commands import COMMANDS, main
from pipeline.cli.options import setting_help_texts

LATER = ("torch._dynamo", "transformers", "pipeline.build", "pipeline.defaults")
PROGRAM = """
import os, sys, time
import torch
begun = time.process_time()
import pipeline
took = time.process_time() - begun
assert took < 0.5, took
if words := sys.argv[1:]:
    from pipeline.cli import main
    code = main(words)
else:
    assert pipeline.artifact and torch.ops.pipeline.run.default
    code = 0
loaded = [name for name in {later!r} if name in sys.modules]
used = sum(os.times()[:2])
assert not loaded and used < 4, (loaded, used)  # 1 s where there is nothing else to do
sys.exit(code)
"""


@pytest.mark.parametrize("words", [(), ("--help",), ("--version",), ("inspect", "{golden}")], ids=" ".join)
def test_what_is_imported(words: tuple[str, ...]) -> None:
    golden = next(Path(__file__).parents[1].glob("artifact/golden/*.trtp"))
    command = [sys.executable, "-c", PROGRAM.format(later=LATER), *(w.format(golden=golden) for w in words)]
    done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert bool(done.stdout) == bool(words)


def test_public_names_are_where_type_checkers_see_them() -> None:
    tree = ast.parse(Path(str(pipeline.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = [(n.module, a.name, a.asname) for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names]
    assert {(module, name, name) for module, names in _PLACES.items() for name in names.split()} == {*seen}
    assert {name for _, name, _ in seen} | {"__version__"} == {*pipeline.__all__}
    assert {*pipeline.__all__} <= {*dir(pipeline)}
    assert all(getattr(pipeline, name) is not None for name in pipeline.__all__)


def test_a_room_never_takes_a_public_names_place() -> None:
    importlib.import_module("pipeline.stages.partition")
    pipeline.capture, before = importlib.import_module("pipeline.stages"), pipeline.capture
    assert pipeline.capture is before and callable(pipeline.capture)
    assert pipeline.stages.partition and not hasattr(pipeline, "no_such_room")


def test_every_command_has_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert f"usage: pipeline {name}" in capsys.readouterr().out


def test_every_setting_has_a_flag_with_its_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in pipeline.CompilationSettings.names())
    words = " ".join(text.split())
    assert "Compute float64 in float32 inside engines; the results are float64 again. Default: False." in words
    whole = (re.fullmatch(r"[A-Z].*\. Default: .*\.", each) for each in setting_help_texts().values())
    assert all(whole) and "--decisions {refuse,example}" in words


def test_settings_are_documented_as_python_3_13_compiles_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the indentation away; with -OO there are none."""
    before = setting_help_texts()
    monkeypatch.setattr(pipeline.CompilationSettings, "__doc__", inspect.getdoc(pipeline.CompilationSettings))
    assert setting_help_texts() == before and [*before] == [*pipeline.CompilationSettings.names()]
    monkeypatch.setattr(pipeline.CompilationSettings, "__doc__", None)
    assert main(["compile", "--help"]) == 0
