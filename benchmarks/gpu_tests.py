"""``python -m benchmarks.gpu_tests`` runs the GPU tests and writes down what passed, where, and with which versions.

With ``NVIDIA_TF32_OVERRIDE=0`` in the environment, float32 products are IEEE, and the result is kept apart.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.environment import collect, save
from benchmarks.gpu import gpu_name

ROOT = Path(__file__).parent.parent
MODELS = "test_models_gpu"
RECORDED = {"attribute_pairs": ("kind", "attribute"), "zoo_gpu": ("task", "name", "dtype")}
"""Tests that record a row each, and the fields that tell rows apart; they lie in result files of these names."""


def run(workers: int, files: list[str], only: str = "") -> ElementTree.Element:
    """pytest's report on the GPU tests, as it writes it; ``only`` those that the expression selects. It names each test
    when it is done, for a run that does not reach its end."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-n", str(workers), f"--junitxml={report}"]
        subprocess.run([*command, *(["-k", only] if only else []), *files], cwd=ROOT, check=False)
        return ElementTree.parse(report).getroot()


def outcome(case: ElementTree.Element) -> str:
    """passed, failed, skipped or error."""
    return next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")


def summary(report: ElementTree.Element) -> dict[str, Any]:
    """Counts by file; each architecture by test and dtype; every test that did not pass, with the reason."""
    counts: dict[str, Counter[str]] = {}
    models: dict[str, str] = {}
    others: dict[str, str] = {}
    for case in report.iter("testcase"):
        module, name, result = case.attrib["classname"].rpartition(".")[2], case.attrib["name"], outcome(case)
        counts.setdefault(module, Counter())[result] += 1
        if module == MODELS:
            models[name] = result
        if result not in ("passed", "skipped"):
            message = next((child.attrib.get("message", "") for child in case), "")
            others[f"{module}::{name}"] = re.sub(r"\s+", " ", message)[:200]
    return {
        "products": "IEEE" if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0" else "TF32",
        "counts": {module: dict(sorted(found.items())) for module, found in sorted(counts.items())},
        "architectures": dict(sorted(models.items())),
        "not_passed": dict(sorted(others.items())),
    }


def rows(report: ElementTree.Element, kind: str) -> list[dict[str, Any]]:
    """What the tests recorded under this name, in the order of the tests."""
    found = (each for each in report.iter("property") if each.attrib["name"] == kind)
    return [json.loads(each.attrib["value"]) for each in found]


def main(arguments: list[str] | None = None) -> int:
    """Runs them; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="pytest's -k: a part of the tests, whose result is kept apart")
    parser.add_argument("--add", action="store_true", help="keep the recorded rows of an earlier run that this has not")
    parser.add_argument("files", nargs="*", default=["tests/gpu"])
    given = parser.parse_args(arguments)
    report = run(given.workers, given.files, given.only)
    result = {"only": given.only, **summary(report)}
    suffix = f"{gpu_name()}_{result['products'].lower()}"
    part = "_part" * bool(given.only)
    path = save(f"gpu_tests_{suffix}{part}", result)
    for kind, of in RECORDED.items():
        if found := rows(report, kind):
            name = f"{kind}_{suffix}{'' if given.add else part}"
            collect(name, kind, [found], of=of, add=given.add, products=result["products"])
    passed = sum(found.get("passed", 0) for found in result["counts"].values())
    print(f"{passed} passed, {len(result['not_passed'])} failed: {path}")
    return 1 if result["not_passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
