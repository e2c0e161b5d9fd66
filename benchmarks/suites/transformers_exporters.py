"""transformers' tests of its exporters: ``tests/exporters`` and the models' tests that inherit them, in the checkout of
transformers that ``--source`` names. It is of the installed version, and needs ``parameterized``.

A test exports models with transformers' own exporter, runs them, and asserts that the results are eager's. A case is a
test with one of its models. It counts if it passes with the library's own exporter and runner (``dynamo``). Then it
runs again with ours, on the reference executor, and the test's own assertions decide.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import random
import signal
import sys
import unittest
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from attrs import frozen

import pipeline
from benchmarks.suites.judge import Case, Row, said
from benchmarks.suites.run import LONGEST
from pipeline.errors import CaptureError, UnsupportedOperatorException
from pipeline.stages.unbuilt import unbuilt

os.environ["RUN_SLOW"] = "1"  # the tests are marked slow; transformers.testing_utils reads it when it is imported

from transformers.exporters import DynamoConfig, DynamoExporter
from transformers.exporters.auto import EXPORT_BACKENDS
from transformers.exporters.runners.runner_dynamo import DynamoModelRunner

from pipeline.compat.transformers import exporters

SUITE, COMMON = "tests.exporters.test_export", "tests.test_modeling_common"
TESTS = "test_torch_export"
"""How the names of the tests of ``dynamo`` begin; those of other formats need other packages."""


class Runner(exporters.PipelineRunner):
    """Our runner, for the reference executor."""

    executor = "reference"


@frozen
class Backend:
    """An exporter, its configuration and its runner."""

    exporter: Any
    config: Any
    runner: Any


THEIRS = Backend(DynamoExporter, DynamoConfig, DynamoModelRunner)
OURS = Backend(exporters.PipelineExporter, partial(exporters.PipelineConfig, settings={"min_block_size": 1}), Runner)


def cases(source: Path) -> Iterator[Case]:
    """Yield a case for each export test of each model."""
    if not (source / "tests/exporters").is_dir():
        raise SystemExit(f"{source} has no folder tests/exporters: expected a checkout of transformers")
    if str(source) not in sys.path:
        sys.path.insert(0, str(source))
    importlib.import_module(SUITE)
    for path in sorted(source.glob("tests/models/*/test_modeling_*.py")):
        name = ".".join(path.relative_to(source).with_suffix("").parts)
        try:
            module = importlib.import_module(name)
        except (Exception, pytest.skip.Exception) as error:
            yield Case(name, partial(dict, outcome="no case", reason=f"it is not imported: {said(error)}"))
        else:
            yield from _of_module(module)


def version(source: Path) -> str:
    """Return the version of the library, which is that of its tests."""
    return f"transformers {importlib.metadata.version('transformers')}"


def _of_module(module: Any) -> Iterator[Case]:
    """Yield the cases of a model's file."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    for kind in kinds:
        if not issubclass(kind, unittest.TestCase):
            continue
        for test in unittest.TestLoader().getTestCaseNames(kind):
            for model in _models(kind, test) if test.startswith(TESTS) else ():
                yield Case(f"{kind.__name__}::{test}[{model.__name__}]", partial(_judge, _of_model(kind, model), test))


def _models(kind: type[unittest.TestCase], test: str) -> tuple[type, ...]:
    """Return the models of a test, which some classes choose in ``setUp``."""
    instance: Any = kind(test)
    try:
        instance.setUp()
    except unittest.SkipTest:
        return ()
    return tuple(instance.all_generative_model_classes if "generate" in test else instance.all_model_classes)


def _of_model(kind: type[unittest.TestCase], model: type) -> type[unittest.TestCase]:
    """Return the tests of a class for one of its models."""

    def setup(self: Any) -> None:
        kind.setUp(self)
        self.all_model_classes = (model,)

    return type(kind.__name__, (kind,), {"setUp": setup, "all_generative_model_classes": (model,)})


def _judge(kind: type[unittest.TestCase], test: str) -> Row:
    """Run a test with the library's backend, then with ours."""
    theirs, exported = _run(kind, test, THEIRS)
    if theirs.faults or theirs.skipped or not exported:
        reasons = [f"the library's own fails: {_named(each)}" for each in theirs.faults]
        reasons += [f"skipped: {reason}" for _, reason in theirs.skipped]
        return {"outcome": "no case", "reason": [*reasons, "the test leaves the model out"][0]}
    if signal.getitimer(signal.ITIMER_PROF)[0]:  # ours has as long as the library's own
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
    ours, programs = _run(kind, test, OURS)
    for fault in ours.faults:
        if not isinstance(fault, Exception):  # it was stopped: unittest reports every exception
            raise fault
    if ours.skipped or len(programs) != len(exported):
        ours.faults.append(AssertionError(f"{len(programs)} programs, the library's own has {len(exported)}"))
    ours.faults.sort(key=lambda fault: isinstance(fault, CaptureError | UnsupportedOperatorException))
    for fault in ours.faults:
        refused = isinstance(fault, CaptureError | UnsupportedOperatorException)
        return {"outcome": "refused" if refused else "wrong", "reason": _named(fault)}
    return {
        "outcome": "right",
        "operators": sum(each.coverage.total for each in programs),
        "in_pytorch": {f"{f.target}: {f.reason}": 1 for each in programs for f in each.coverage.fallback},
    }


def _run(kind: type[unittest.TestCase], test: str, backend: Backend) -> tuple[Faults, list[Any]]:
    """Run a test with a backend; return its faults, and the programs that it has exported."""
    programs: list[Any] = []
    faults = Faults()
    for generator in (random, getattr(sys.modules.get(COMMON), "global_rng", random)):
        generator.seed(0)
    torch.manual_seed(0)
    with ExitStack() as stack:
        suite, registered = sys.modules[SUITE], EXPORT_BACKENDS[backend.exporter.export_format]
        stack.enter_context(mock.patch.object(suite, "DynamoExporter", _noting(backend.exporter, programs)))
        stack.enter_context(mock.patch.object(suite, "DynamoConfig", backend.config))
        stack.enter_context(mock.patch.object(registered, "runner", backend.runner))
        stack.enter_context(mock.patch.object(exporters, "compile", _compiled))
        kind(test).run(faults)
    return faults, programs


def _noting(exporter: Any, programs: list[Any]) -> type:
    """Return an exporter that notes its programs. Tests of older versions call an export's ``module()``."""

    class Noting(exporter):  # type: ignore[misc]
        def export(self, *args: Any, **kwargs: Any) -> Any:
            exported = super().export(*args, **kwargs)
            programs.append(exported.program)
            exported.module = lambda: exported
            return exported

    return Noting


def _compiled(program: Any, **options: Any) -> pipeline.Compiled:
    """Compile a program, without building its engines."""
    compiled: pipeline.Compiled = pipeline.default(**options).replace("build", unbuilt)(program)
    return compiled


class Faults(unittest.TestResult):
    """The errors of a test and of its subtests."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[BaseException] = []

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest's name
        """Note an error."""
        self.faults.append(err[1])

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        """Note a failed assertion."""
        self.faults.append(err[1])

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        """Note how a subtest fails."""
        if err is not None:
            self.faults.append(err[1])


def _named(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {said(fault)}"
