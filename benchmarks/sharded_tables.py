"""``python -m benchmarks.sharded_tables FILE.jsonl ...``: save results of ``benchmarks.sharded`` and
``benchmarks.sharded_overhead``, and their tables.

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
from benchmarks.markdown import table, with_part
from benchmarks.real_tables import group, main

Key: TypeAlias = tuple[str, int, int, int, str, str]
HEAD = """
## Several GPUs

Language models in float16 with random weights are sharded over two GPUs with DTensor (`python -m benchmarks.sharded`).
*Token* and *prompt, ms* are the milliseconds to generate a token and to process the prompt. *NCCL* is the time of a
token's NCCL kernels, which includes waiting for the other rank. *Share* is a lower bound of a token's time (the time to
read a rank's weights at copy bandwidth), divided by the measured time. *Tokens* counts the greedy tokens that equal the
tokens of eager PyTorch on one GPU. *Off* is the largest difference from eager's logits of the first token. With random
weights, rounding in float16 changes some greedy tokens, in eager PyTorch too; in float32 (IEEE) it does not.
"""
COLUMNS = ["model", "batch", "prompt", "method", "token", "NCCL", "prompt, ms", "share", "tokens", "off"]
OVERHEAD_HEAD = """
The next table splits the milliseconds of a decoder step for the given number of *tokens* (`python -m
benchmarks.sharded_overhead`). *Engines* and *collectives* are the total times of all engines and of all collectives
when each runs alone, with their number. *Overhead* is the rest of the step. Part of it is the CPU's work between two
engines or collectives (*between*); the rest is waiting for other ranks. On CPUs, the reference executor runs the
networks and gloo runs the collectives.
"""
OVERHEAD_COLUMNS = ["on", "model", "batch", "tokens", "method", "step", "engines", "collectives", "overhead", "between"]

PAGE = Path(__file__).parent.parent / "docs" / "sharded.md"
BESIDE = {
    "two GPUs": "pipeline + graph",
    "without graphs": "pipeline",
    "torch.compile": "torch.compile, reduce-overhead",
    "one GPU": "pipeline + graph, one GPU",
}
"""The methods of whole models that the page of sharded models has, by its columns."""


def page(results: Path = RESULTS) -> str:
    """The page of sharded models with the times of whole models."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("sharded-*.json")))
    lines = table(["model", "batch", *BESIDE], (row for data in found for row in whole_rows(data)))
    return with_part(PAGE.read_text(encoding="utf-8"), "times", lines)


def whole_rows(data: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each whole model and batch: milliseconds of a token and of a prompt by each method."""
    rows = [row for row in data.get("sharded", []) if not row["layers"] and data["machine"]["gpu"]]
    rows = [row for row in rows if row.get("dtype") != "float32"]
    for model, batch in dict.fromkeys((row["model"], row["batch"]) for row in rows):
        of = {row["method"]: row for row in rows if (row["model"], row["batch"]) == (model, batch)}
        times = (of.get(method) for method in BESIDE.values())
        yield [model, str(batch), *(f"{_three(r['token_ms'])} / {_three(r['prompt_ms'])}" if r else "" for r in times)]


def _three(number: float) -> str:
    """A number with three digits at least, without an exponent."""
    return f"{number:.0f}" if number >= 1000 else f"{number:.3g}"


def key(row: dict[str, Any]) -> Key:
    """What tells a row from others; ``layers`` is 0 for the model's own."""
    return (
        row["model"],
        row["layers"] or 0,
        row["batch"],
        row["tokens" if "step_ms" in row else "prompt"],
        row["method"],
        row.get("dtype", "float16"),
    )


def merge(paths: Sequence[Path], results: Path = RESULTS) -> list[Path]:
    """Put the lines of these files into the results."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            groups.setdefault(group((row := json.loads(line))["at"]), []).append(row)
    written = []
    for name, rows in sorted(groups.items()):
        path = results / f"sharded-{name}.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        tests = [{k: v for k, v in row.items() if k != "at"} for row in rows if "hang_test" in row]
        known = before.get("hangs", [])
        found = {
            **rows[-1]["at"],
            "sharded": newest([*before.get("sharded", []), *(row for row in rows if "token_ms" in row)]),
            "overheads": newest([*before.get("overheads", []), *(row for row in rows if "step_ms" in row)]),
            "hangs": known + [row for row in tests if row not in known],
        }
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        written.append(path)
    return written


def newest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of each key, without where it was measured."""
    measured = {key(row): row for row in rows}
    return [{k: v for k, v in measured[each].items() if k != "at"} for each in sorted(measured)]


def table_rows(data: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a row of the page's table for each row of a result."""
    for row in data.get("sharded", []):
        model = row["model"] + (f", {row['layers']} layers" if row["layers"] else "")
        times = [_three(row[name]) if row.get(name) else "" for name in ("token_ms", "token_nccl_ms", "prompt_ms")]
        said = [f"{row['share_of_copies']:.0%}", row.get("tokens_as_one_gpu", ""), f"{row.get('logits_off', ''):.2}"]
        method = row["method"] + (f", {row['engines']} engines" if row.get("engines") else "")
        method += ", float32" if row.get("dtype") == "float32" else ""
        yield [model, str(row["batch"]), str(row["prompt"]), method, *times, *said]


def overhead_rows(data: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a row of the second table for each row of a result."""
    for row in data.get("overheads", []):
        model = row["model"] + (f", {row['layers']} layers" if row["layers"] else "")
        times = [f"{row[f'{name}_ms']:.3g}" for name in ("step", "engines", "collectives", "overhead")]
        counts = [
            "",
            f" ({row['engines']})",
            f" ({row['collectives']})",
            f" ({row['overhead_ms'] / row['step_ms']:.0%})",
        ]
        place = f"{row['ranks']} {data['machine']['gpu'] or 'CPUs'}"
        cells = [time + more for time, more in zip(times, counts, strict=True)]
        between = f"{row['between_ms']:.3g}" if "between_ms" in row else ""
        yield [place, model, str(row["batch"]), str(row["tokens"]), row["method"], *cells, between]


if __name__ == "__main__":
    sys.exit(main(merge=merge))
