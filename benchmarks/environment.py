"""What a measurement depends on, and where it is kept: benchmarks/results, one JSON file for each kind and machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

import pipeline
from pipeline.trt import CAPABILITIES

RESULTS = Path(__file__).parent / "results"
Row: TypeAlias = dict[str, Any]


def environment() -> dict[str, Any]:
    """Versions, machine and date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "pipeline": pipeline.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            CAPABILITIES.flavour: str(CAPABILITIES.version),
            "transformers": importlib.metadata.version("transformers"),
        },
        "machine": {
            "cpu": cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def cpu() -> str:
    """The processor's name as Linux gives it."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.processor() or platform.machine()


def known(path: Path, key: str) -> list[Row]:
    """The rows of a result; none if there is no such file."""
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))[key] if path.exists() else []
    return rows


def replaced(rows: Sequence[Row], found: Sequence[Row], of: Callable[[Row], object]) -> list[Row]:
    """Rows with those found in the place of the earlier ones that are ``of`` the same, or at the end."""
    anew = {of(row) for row in found}
    before = next((i for i, row in enumerate(rows) if of(row) in anew), len(rows))
    return [*rows[:before], *found, *(row for row in rows[before:] if of(row) not in anew)]


def save(name: str, result: dict[str, Any]) -> Path:
    """Write a result with its environment; an earlier one of that name is replaced."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**environment(), **result}, indent=2) + "\n", encoding="utf-8")
    return path
