"""The table of docs/versions.md, from what each version of TensorRT showed; ``benchmarks.tables`` writes it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import RESULTS
from benchmarks.markdown import table, with_part
from benchmarks.zoo_tables import OUTCOMES, outcome
from pipeline.records.library_support import TABLE, GpuSupport

PAGE = Path(__file__).parent.parent / "docs" / "versions.md"
MEASURED, GPUS = "measured", "gpus"
"""The parts of the page between ``<!-- begin: … -->`` and ``<!-- end: … -->`` that are made."""
LIMIT = 1e-2
"""The error from which a pair of layers counts as wrong: above what TF32 loses."""

COLUMNS = ["TensorRT", "models built without a GPU", "GPU tests", "small models on a GPU", "wrong layer attributes"]


def page(results: Path = RESULTS) -> str:
    """The page with its tables made anew; all else is written by hand."""
    found = [json.loads(path.read_text("utf-8")) for path in sorted(results.glob("*.json"))]
    text = with_part(PAGE.read_text(encoding="utf-8"), MEASURED, table(COLUMNS, rows(found)))
    releases = TABLE[0].loads
    return with_part(text, GPUS, table(["GPU", "capability", *releases, ""], map(gpu_row, TABLE)))


def gpu_row(row: GpuSupport) -> list[str]:
    """The row of a kind of GPU, from the table that the package checks machines by."""
    return [row.gpus, row.capability, *row.loads.values(), row.note]


def rows(found: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """A row for each flavour and version that has builds."""
    builds = {_library(data): data["builds"] for data in found if "builds" in data}
    for library in sorted(builds, key=_order):
        mine = [data for data in found if _library(data) == library]
        yield [
            " ".join(library),
            _built(builds[library]),
            _said(_suite(data) for data in mine if "counts" in data and not data.get("only")),
            _said(_zoo(data) for data in mine if "zoo_gpu" in data),
            _said(_pairs(data) for data in mine if "attribute_pairs" in data),
        ]


def _library(data: dict[str, Any]) -> tuple[str, str]:
    return next((n, v) for n, v in data["versions"].items() if n in ("tensorrt", "tensorrt_rtx"))


def _order(library: tuple[str, str]) -> tuple[str, list[int]]:
    return library[0], [int(part) for part in library[1].split(".")]


def _said(cells: Iterator[str]) -> str:
    return "; ".join(cells) or "not run"


def _built(rows: Sequence[dict[str, Any]]) -> str:
    failed = [f"{row['name']} in {row['dtype']}" for row in rows if "failed" in row]
    return f"{len(rows) - len(failed)} of {len(rows)}" + (f", not {', '.join(failed)}" if failed else "")


def _suite(data: dict[str, Any]) -> str:
    passed = sum(counts.get("passed", 0) for counts in data["counts"].values())
    return f"{passed} passed, {len(data['not_passed'])} failed ({_place(data)}, {data['products']})"


def _zoo(data: dict[str, Any]) -> str:
    counts = Counter(map(outcome, data["zoo_gpu"]))
    said = ", ".join(f"{counts[what]} {what}" for what in OUTCOMES[:6] if counts[what])
    return f"{said} ({_place(data)}, {data['products']})"


def _pairs(data: dict[str, Any]) -> str:
    wrong = {f"{row['kind']}.{row['attribute']}" for row in data["attribute_pairs"] if (row["error"] or 0.0) > LIMIT}
    return f"{', '.join(sorted(wrong)) or 'none'} of {len(data['attribute_pairs'])} pairs ({_place(data)})"


def _place(data: dict[str, Any]) -> str:
    return re.sub(r"^NVIDIA | \d+GB.*$", "", data["machine"]["gpu"] or "no GPU")
