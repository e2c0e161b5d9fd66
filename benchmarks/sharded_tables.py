"""``python -m benchmarks.sharded_tables FILE.jsonl ...``: save results of ``benchmarks.sharded``, and their table.

The lines of the files are put into ``benchmarks/results/sharded-GPU-LIBRARY.json``; the newest line of a model, batch
and method takes the place of others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.environment import RESULTS
from benchmarks.real_tables import group, main

Key: TypeAlias = tuple[str, int, int, int, str]
HEAD = """
## Several GPUs

Language models of float16, sharded over two GPUs with DTensor, random weights (`python -m benchmarks.sharded`). Times
are milliseconds: of a decoded token after the prompt, of the NCCL kernels in it (which wait for the other rank), and of
the prompt. *Share* is that of a rank's weights at the speed of a copy. *Tokens* counts those that one GPU has, too.
"""
COLUMNS = ["model", "batch", "prompt", "method", "token", "NCCL", "prompt, ms", "share", "tokens"]


def key(row: dict[str, Any]) -> Key:
    """What tells a row from others; ``layers`` is 0 for the model's own."""
    return row["model"], row["layers"] or 0, row["batch"], row["prompt"], row["method"]


def merge(paths: Sequence[Path], results: Path = RESULTS) -> list[Path]:
    """Put the lines of these files into the results."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            groups.setdefault(group((row := json.loads(line))["at"]), []).append(row)
    written = []
    for name, rows in sorted(groups.items()):
        path = results / f"sharded-{name}.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"sharded": [], "hangs": []}
        measured = {key(row): row for row in [*before["sharded"], *(row for row in rows if "token_ms" in row)]}
        bare = [{k: v for k, v in measured[each].items() if k != "at"} for each in sorted(measured)]
        tests = [{k: v for k, v in row.items() if k != "at"} for row in rows if "hang_test" in row]
        hangs = before["hangs"] + [row for row in tests if row not in before["hangs"]]
        found = {**rows[-1]["at"], "sharded": bare, "hangs": hangs}
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        written.append(path)
    return written


def table_rows(data: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a row of the page's table for each row of a result."""
    for row in data.get("sharded", []):
        model = row["model"] + (f", {row['layers']} layers" if row["layers"] else "")
        times = [f"{row[name]:.3g}" if row.get(name) else "" for name in ("token_ms", "token_nccl_ms", "prompt_ms")]
        said = [f"{row['share_of_copies']:.0%}", row.get("tokens_as_one_gpu", "")]
        yield [model, str(row["batch"]), str(row["prompt"]), row["method"], *times, *said]


if __name__ == "__main__":
    sys.exit(main(merge=merge))
