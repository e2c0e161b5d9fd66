"""Torch-TensorRT's tests of models: pytest's files of ``tests/py/dynamo/hlo`` or ``models``, in the folder that
``--source`` names.

A test compiles a model by ``torch_tensorrt.compile`` or ``torch_tensorrt.dynamo.compile``, calls it, and asserts that
the results are eager's. A stand-in compiles it by us, for the reference executor, and the test's own assertions decide.
A test that calls anything else of Torch-TensorRT is no case.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import pipeline
from benchmarks.suites.judge import Case, Row, said
from benchmarks.suites.torch_tensorrt import Input, on_cpu, stand_ins, version
from pipeline.errors import CaptureError, UnsupportedOperatorException
from pipeline.stages.unbuilt import unbuilt

__all__ = ["cases", "version"]

CONFTEST = 'import pytest\n\n\n@pytest.fixture(params=["dynamo"])\ndef ir(request):\n    return request.param\n'
_programs: list[pipeline.Compiled] = []


class TheirsError(Exception):
    """A test calls what only Torch-TensorRT has."""


class Theirs:
    """A name of Torch-TensorRT that the stand-in does not have: it may be passed on, but not called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Theirs:
        return KNOWN[name] if name in KNOWN else Theirs(f"{self.name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TheirsError(self.name)


def compile(
    model: Any,
    *given: Any,
    ir: str = "dynamo",
    inputs: Sequence[Any] = (),
    arg_inputs: Sequence[Any] = (),
    kwarg_inputs: Mapping[str, Any] | None = None,
    min_block_size: int = 5,
    **options: Any,
) -> Any:
    """Return a model compiled by us, as Torch-TensorRT's functions are called. ``given``: ``ir`` or the inputs."""
    for each in given:
        ir, inputs = (each, inputs) if isinstance(each, str) else (ir, each)
    if ir not in ("dynamo", "default"):
        raise TheirsError(f"ir={ir}")
    args, kwargs = tree_map(
        lambda leaf: leaf.ours if isinstance(leaf, Input) else leaf,
        (tuple(inputs or arg_inputs), dict(kwarg_inputs or {})),
    )
    compile = pipeline.default(min_block_size=min_block_size).replace("build", unbuilt)
    compiled: pipeline.Compiled = compile(pipeline.capture(model, args, kwargs))
    _programs.append(compiled)
    return compiled.module("reference")


def similar(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the cosine of two results; 1 for two without a norm."""
    a, b = (value.detach().flatten().double() for value in (one, other))
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms else float(torch.equal(a, b))


KNOWN: Mapping[str, Any] = {
    "compile": compile,
    "Input": Input,
    "Device": lambda *_, **__: None,
    "cosine_similarity": similar,
    "COSINE_THRESHOLD": 0.99,
    "has_complex_decomposition": lambda: False,
}


def cases(source: Path) -> Iterator[Case]:
    """Yield a case for each test in the files of a folder."""
    stand_ins(KNOWN, Theirs)
    folder = Path(tempfile.mkdtemp(prefix="peer-models-"))
    (folder / "conftest.py").write_text(CONFTEST)
    for path in sorted(source.glob("test_*.py")):
        (folder / path.name).write_text(on_cpu(path.read_text("utf-8")))
    collected = Collected()
    _run(folder, ["--collect-only", str(folder)], collected)
    for name in collected.names:
        yield Case(name, partial(_judge, folder, name))


class Collected:
    """A plugin of pytest that notes what is collected."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_collection_finish(self, session: Any) -> None:
        """Note the tests."""
        self.names += [item.nodeid for item in session.items]


class Outcome:
    """A plugin of pytest that notes how a test ends."""

    def __init__(self) -> None:
        self.row: Row = {"outcome": "no case", "reason": "it did not run"}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note that a test passed, or was skipped."""
        if report.when == "call" and report.passed:
            self.row = {"outcome": "right"}
        elif report.skipped:
            self.row = {"outcome": "no case", "reason": str(report.longrepr)[-200:]}

    def pytest_exception_interact(self, call: Any) -> None:
        """Note why a test failed."""
        error = call.excinfo.value
        refused = isinstance(error, CaptureError | UnsupportedOperatorException)
        theirs = isinstance(error, TheirsError) or (not _programs and not refused)
        self.row = {
            "outcome": "refused" if refused else "no case" if theirs else "wrong",
            "reason": f"{type(error).__name__}: {said(error)}",
        }


def _judge(folder: Path, name: str) -> Row:
    """Run a test; return its row, with what runs in PyTorch."""
    _programs.clear()
    outcome = Outcome()
    torch.manual_seed(3)
    _run(folder, [str(folder / name)], outcome)
    row = outcome.row
    if row["outcome"] == "right":
        if not _programs:
            return {"outcome": "no case", "reason": "it compiles no model"}
        row["operators"] = sum(each.coverage.total for each in _programs)
        row["in_pytorch"] = {f"{f.target}: {f.reason}": 1 for each in _programs for f in each.coverage.fallback}
    return row


def _run(folder: Path, arguments: Sequence[str], plugin: object) -> None:
    before = list(sys.path)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:logging", "--rootdir", str(folder), "-c", "/dev/null"]
    try:
        pytest.main([*options, "--no-header", "--tb=no", *arguments], plugins=[plugin])
    finally:
        sys.path[:] = before
        for each in [each for each in sys.modules if each.partition(".")[0].startswith(("test_", "conftest"))]:
            del sys.modules[each]
