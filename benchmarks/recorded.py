"""A plugin of pytest: each test is written down when it has ended, so that a run that is cut short keeps what it has.

``python -m benchmarks.gpu_tests`` loads it, and names the file in ``RECORDED_TESTS``. A line is a JSON object: the
test's file and name, how it ended, why where it did not pass, its seconds, and what it recorded with
``record_property``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

FILE = "RECORDED_TESTS"
LONGEST = 200
"""Characters of a reason."""


@frozen
class Recorder:
    """Appends a line to a file for each test that ended."""

    path: Path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append a line if a test ended: after its call, or where it was skipped or failed outside of it."""
        if report.when == "call" or not report.passed:
            with self.path.open("a", encoding="utf-8") as file:
                print(json.dumps(row(report)), file=file)


def pytest_configure(config: pytest.Config) -> None:
    """Record what is reported to this process, unless it is a worker of pytest-xdist, which reports to another."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(os.environ[FILE])))


def row(report: pytest.TestReport) -> dict[str, Any]:
    """A test's line: ``outcome`` is passed, failed, skipped, or error where it failed before or after its call."""
    path, _, name = report.nodeid.partition("::")
    outcome = "error" if report.failed and report.when != "call" else report.outcome
    return {
        "module": Path(path).stem,
        "name": name,
        "outcome": outcome,
        "reason": "" if report.passed else _reason(report),
        "seconds": round(report.duration, 2),
        "properties": dict(report.user_properties),
    }


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[-1])[:LONGEST]
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join(str(getattr(crash, "message", report.longrepr)).split())[:LONGEST]
