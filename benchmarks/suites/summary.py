"""Counts of a suite's outcomes as a file of benchmarks/results, and the table of docs/testing.md from these files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import environment
from benchmarks.environment import RESULTS
from benchmarks.markdown import table, with_part
from benchmarks.suites.judge import Row

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
COLUMNS = ["suite", "version", "cases", "right", "converted", "refused", "wrong"]
"""Of the table: ``converted`` counts the right cases of which no operator runs in PyTorch."""
MOST = 12
"""How many reasons a file keeps of each kind, the most frequent."""


def write(suite: str, version: str, total: int, found: Mapping[str, Row]) -> Path:
    """Write the counts of a log; ``total`` is the number of cases that the suite has."""
    rows = [row for row in found.values() if row["outcome"] != "no case"]
    counts = Counter(row["outcome"] for row in rows)
    right = [row for row in rows if row["outcome"] == "right"]
    result = {
        "suite": suite,
        "version": version,
        "total": total,
        "no_case": len(found) - len(rows),
        "cases": len(rows),
        "right": counts["right"],
        "converted": sum(not row["in_pytorch"] for row in right),
        "refused": counts["refused"],
        "refusals": dict(Counter(row["reason"] for row in rows if row["outcome"] == "refused").most_common(MOST)),
        "in_pytorch": dict(Counter(reason for row in right for reason in row["in_pytorch"]).most_common(MOST)),
        "wrong": {row["case"]: row["reason"] for row in rows if row["outcome"] == "wrong"},
    }
    return environment.save(f"suite_{suite}", result, libraries=())


def share(found: Mapping[str, Row]) -> float:
    """Return the percentage of a log's cases that are right; 0 if it has no case."""
    outcomes = [row["outcome"] for row in found.values() if row["outcome"] != "no case"]
    return 100 * outcomes.count("right") / max(len(outcomes), 1)


def page(results: Path = RESULTS) -> str:
    """Return docs/testing.md with its table made anew."""
    return with_part(PAGE.read_text("utf-8"), "suites", table(COLUMNS, table_rows(results)))


def table_rows(results: Path = RESULTS) -> Iterator[list[str]]:
    """Yield a row for each suite that has results."""
    for path in sorted(results.glob("suite_*.json")):
        data = json.loads(path.read_text("utf-8"))
        counts = [str(data[name]) for name in ("cases", "right", "converted", "refused")]
        yield [data["suite"], data["version"], *counts, str(len(data["wrong"]))]
