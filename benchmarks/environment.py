"""What a measurement depends on, and where it is kept: benchmarks/results, one JSON file for each kind and machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pipeline
from pipeline.trt import CAPABILITIES

RESULTS = Path(__file__).parent / "results"


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


def kept(path: Path, key: str, anew: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The rows of a result that are not measured anew; none if there is no such file."""
    rows = json.loads(path.read_text(encoding="utf-8"))[key] if path.exists() else []
    return [row for row in rows if not anew(row)]


def save(name: str, result: dict[str, Any]) -> Path:
    """Write a result with its environment; an earlier one of that name is replaced."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**environment(), **result}, indent=2) + "\n", encoding="utf-8")
    return path
