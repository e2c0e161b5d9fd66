"""The report of the results of ``benchmarks.zoo``; ``python -m benchmarks.tables --note`` writes it to docs/notes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import real_tables
from benchmarks.environment import RESULTS
from benchmarks.markdown import filled, table

HEAD = """# Models

Which architectures compile, how much of each runs in engines, how far the results are from exact ones, and what stays
in PyTorch and why. `python -m benchmarks.tables --note` writes such a report.
"""

SMALL = """## Small models

Small models with random weights, made from their configurations, are compiled, run on the reference executor and
compared with eager PyTorch, at the sizes of the example and at some others (`python -m benchmarks.zoo`).

"Dims that vary" are those that torch.export lets vary. An error is the largest one of an output, relative to its
largest element, against the same model in float64 (or against eager PyTorch if the model does not run in float64).
Operators that engines do not take run in PyTorch; the reasons are listed below each table.

The last columns are from a GPU, with the model on it before capture (`tests/gpu/test_zoo_gpu.py`): the error of
TensorRT's engines and, in brackets, that of eager PyTorch there. An engine's error may be four times eager's plus the
floor of [verification](../verification.md). Larger errors are examined: *decided by rounding* means that the elements
change when products are rounded differently, *healed* that another form agrees, as `pipeline.verify("heal")` finds it,
and *exported otherwise* that the program agrees with its captured graph, which differs from the module.
"""

DTYPES = ("float32", "float16", "bfloat16")

OUTCOMES = (
    "right",
    "rounding",
    "healed",
    "torch.export differs",
    "wrong",
    "failed",
    "refused",
    "not run by eager",
)

COLUMNS = ["model", "task", "dtype", "dims that vary", "operators", "engines", "in PyTorch", "error", "eager's own"]


def page(results: Path = RESULTS) -> str:
    """The whole page: a part for each table of the zoo that has results."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("zoo_*.json"))]
    runs = [data for data in found if "zoo_gpu" in data]
    small = [SMALL, *map(_where, runs), *(part(data, runs) for data in found if "zoo" in data)]
    return "\n".join([HEAD, *filter(None, [real_tables.part(results)]), *small])


def _where(run: dict[str, Any]) -> str:
    """Which GPU columns a run gives."""
    versions = ", ".join(f"{name} {value}" for name, value in run["versions"].items())
    counts = Counter(map(outcome, run["zoo_gpu"]))
    said = ", ".join(f"{counts[what]} {what}" for what in OUTCOMES if counts[what])
    return filled(f"On {run['machine']['gpu']}, {run['date']}; {versions}; products in {run['products']}: {said}.")


def outcome(row: dict[str, Any]) -> str:
    """How an architecture fared on a GPU, one of `OUTCOMES`. torch.export refuses, and eager does not run."""
    if "eager" in row:
        return "not run by eager"
    if "undecided" in row:
        return "rounding"
    if "exported" in row:
        return "torch.export differs"
    return next((key for key in ("healed", "refused", "failed", "wrong") if key in row), "right")


def _on_gpu(row: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """A cell for each dtype: what a run on a GPU says of an architecture."""
    same = {r["dtype"]: r for r in run["zoo_gpu"] if (r["name"], r["task"]) == (row["name"], row["task"])}
    return [_gpu_cell(same[dtype]) if dtype in same else "" for dtype in _dtypes(run)]


def _dtypes(run: dict[str, Any]) -> list[str]:
    """The dtypes that a run has rows of."""
    return [dtype for dtype in DTYPES if any(row["dtype"] == dtype for row in run["zoo_gpu"])]


def _gpu_cell(row: dict[str, Any]) -> str:
    found = outcome(row)
    if "error" not in row:
        return "**failed**" if found == "failed" else found
    said = {"wrong": "**wrong** ", "right": ""}.get(found, f"{found} ")
    return f"{said}{row['error']:.0e} ({row['eager_error']:.0e})"


def part(data: dict[str, Any], runs: Sequence[dict[str, Any]] = ()) -> str:
    """A table of the zoo: what compiled, why some of it runs in PyTorch, and what was not compiled."""
    rows = data["zoo"]
    compiled = [row for row in rows if "nodes" in row and "wrong" not in row]
    whole = sum(row["engines"] == 1 and not row["fallbacks"] for row in compiled)
    versions = ", ".join(f"{name} {value}" for name, value in data["versions"].items())
    return "\n".join(
        [
            f"## {data['table'].capitalize()}\n",
            filled(
                f"{data['date']}; {versions}. Of {len(rows)} models, {len(compiled)} compile and agree with eager "
                f"PyTorch, {whole} of them as one engine with nothing left to PyTorch."
            ),
            *table(
                [*COLUMNS, *(f"{_library(run)} {dtype}" for run in runs for dtype in _dtypes(run))],
                [[*_cells(row), *(cell for run in runs for cell in _on_gpu(row, run))] for row in compiled],
            ),
            *_list("In PyTorch, and why", _reasons(compiled)),
            *_list(
                "Not taken by torch.export", (f"{_named(row)}: {row['refused']}" for row in rows if "refused" in row)
            ),
            *_list(
                "Failed", (f"{_named(row)}: {why}" for row in rows if (why := row.get("failed") or row.get("wrong")))
            ),
            "",
        ]
    )


def _library(run: dict[str, Any]) -> str:
    """The version of a run's engines, the GPU and its products: 1.4.0.76 H100 TF32."""
    version = next(run["versions"][name] for name in ("tensorrt_rtx", "tensorrt") if name in run["versions"])
    return f"{version} {run['machine']['gpu'].removeprefix('NVIDIA ').split()[0]} {run['products']}"


def _cells(row: dict[str, Any]) -> list[str]:
    own = "" if row["eager_error"] is None else f"{row['eager_error']:.1e}"
    fallbacks = sum(fallback["nodes"] for fallback in row["fallbacks"])
    counts = [str(row["nodes"]), str(row["engines"]), str(fallbacks or "")]
    dims = ", ".join(row["dynamic"])
    return [f"`{row['name']}`", row["task"], row["dtype"], dims, *counts, f"{row['error']:.1e}", own]


def _named(row: dict[str, Any]) -> str:
    dtype = "" if row["dtype"] == "float32" else f" in {row['dtype']}"
    return f"`{row['name']}`, {row['task']}{dtype}"


def _reasons(rows: list[dict[str, Any]]) -> Iterator[str]:
    """For each model, the operators that run in PyTorch, each with its reason."""
    for row in rows:
        if row["fallbacks"]:
            said = {f["target"]: f["reason"] for f in reversed(row["fallbacks"])}
            yield f"{_named(row)}:" + "".join(f"\n  - `{target}`: {why}" for target, why in sorted(said.items()))


def _list(head: str, items: Iterator[str]) -> Iterator[str]:
    """A list below a heading, if there is anything to list."""
    lines = [f"- {item}" for item in items]
    yield from ["", f"### {head}\n", *lines] if lines else []
