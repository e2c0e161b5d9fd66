"""torch's tests of its Inductor, with ``pipeline`` as the backend of ``torch.compile``: ``test_torchinductor.py``.

A test calls the file's ``check_model`` with a model and its arguments, once or more. This driver replaces it by a
function that compiles the model by ``torch.compile(backend=pipeline.backend(…))``. Further assertions of a test are
about Inductor's code, and do not count; a test that never calls ``check_model`` is no case.
"""

from __future__ import annotations

import ast
import importlib
import sys
import unittest
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from attrs import frozen
from torch._dynamo.exc import TorchRuntimeError

import pipeline
from benchmarks.suites.judge import COMPILE, Call, Case, Row, judged
from pipeline.errors import CaptureError


def cases(source: Path) -> Iterator[Case]:
    """Yield a case for each test of ``CommonTemplate`` in the file at ``source`` that calls ``check_model``."""
    text = source.read_text("utf-8")
    tree = ast.parse(text)
    tests = _imported(tree, source)
    template = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "CommonTemplate")
    own = {node.name for node in template.body if isinstance(node, ast.FunctionDef) and _checks(text, node)}
    for name in sorted(name for name in dir(tests.CommonTemplate) if name.startswith("test_")):
        if any(name == test or name.startswith(f"{test}_") for test in own):  # parametrized: with their values behind
            yield Case(name, partial(_judge, tests, name))


def version(source: Path) -> str:
    """Return the version of torch that the file's checkout states, the installed one if it states none."""
    stated = source.parents[2] / "version.txt"
    return f"torch {(stated.read_text() if stated.exists() else str(torch.__version__)).partition('+')[0].strip()}"


def _checks(text: str, test: ast.FunctionDef) -> bool:
    return "check_model(" in (code := ast.get_source_segment(text, test) or "") or "self.common(" in code


@frozen
class Compiler:
    """A compiler of judged calls: ``torch.compile`` with our backend."""

    def __call__(self, call: Call, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[pipeline.Compiled]]:
        """Return what to call, and the list of programs that the first call compiles."""
        programs: list[pipeline.Compiled] = []

        def note(event: pipeline.Event) -> None:
            if event.kind == "finished" and event.stage == "refit_map":
                programs.append(event.record)

        torch._dynamo.reset()
        backend = pipeline.backend(COMPILE.observed_by(note), executor="reference")
        compiled = Call(torch.compile(call.function, backend=backend), *call.arguments)

        def run(*tensors: torch.Tensor) -> Any:
            try:
                results = compiled(*tensors)
            except TorchRuntimeError as error:
                raise CaptureError(f"Dynamo: {error}") from error
            if backend.refused or not programs:
                raise CaptureError("; ".join(backend.refused) or "Dynamo traces no graph")
            return results

        return run, programs


def _judge(tests: ModuleType, name: str) -> Row:
    """Run a test with ``check_model`` replaced; return the row of its first call that is not right, or of the last."""
    rows: list[Row] = []

    def check_model(self: Any, model: Any, example_inputs: Any, kwargs: Any = None, **options: Any) -> None:
        if not rows or rows[-1]["outcome"] == "right":
            call = Call(model, example_inputs, kwargs or {})
            rows.append(judged(call, call.tensors, Compiler()))

    class Test(tests.TestCase):  # type: ignore[name-defined, misc]
        common, device = check_model, "cpu"

    setattr(Test, name, getattr(tests.CommonTemplate, name))
    tests.check_model = check_model
    result = unittest.TestResult()
    with suppress(unittest.SkipTest):
        Test(name).run(result)
    said = [*(text for _, text in result.errors + result.failures), *(why for _, why in result.skipped)]
    return (
        rows[-1]
        if rows
        else {"outcome": "no case", "reason": (said or ["check_model is not called"])[0].strip().splitlines()[-1]}
    )


def _imported(tree: ast.Module, source: Path) -> ModuleType:
    """Import the file; names of torch that the installed version does not have are None there."""
    module = ModuleType(source.stem)
    module.__file__ = str(source)
    sys.modules[source.stem] = module
    missing = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            missing += _without_missing(node)
    vars(module).update(dict.fromkeys(missing))
    exec(compile(tree, str(source), "exec"), vars(module))
    return module


def _without_missing(node: ast.ImportFrom) -> list[str]:
    """Remove the names that cannot be imported from a statement, and return them."""
    here = importlib.import_module(str(node.module))
    gone = [alias for alias in node.names if not hasattr(here, alias.name)]
    node.names = [alias for alias in node.names if alias not in gone] or [
        ast.copy_location(ast.alias("__name__", "_"), node)
    ]
    return [alias.asname or alias.name for alias in gone]
