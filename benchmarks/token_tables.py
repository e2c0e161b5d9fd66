"""The parts of docs/benchmarks.md that ``benchmarks.tokens`` measured."""

from __future__ import annotations

from typing import Any

from benchmarks.markdown import filled, table, where

TOKENS = """A step of a Llama-like decoder with random weights decodes one token for each row, at the last position of
the cache. GPU ms is a step's time, "over torch.compile" ours in multiples of transformers' static cache under
`torch.compile(mode="reduce-overhead")` in the same run; the target is 0.67. Bandwidth is that of the weights which a
step reads, in parts of what a copy reaches there ({copy_gb_s} GB/s, read and written); the aim is 0.8. Ready s is the
time to compile, torch.export's included, stages s without it.
"""

STEPS = """The kernels of such a step by the module they belong to, all layers together, as TensorRT's profiler measures
them, which adds some 2 µs to each. GB/s is that of the weights which they read.
"""

OURS, COMPILED = "pipeline + graph", "static cache, reduce-overhead"
_TOKENS = ["model", "way", "GPU ms", "over torch.compile", "bandwidth", "host µs", "ready s", "stages s"]


def tokens(data: dict[str, Any]) -> str:
    """A token's milliseconds, by model and way."""
    found = data["tokens"]
    compiled = {_subject(row): row["gpu_ms"] for row in found if row["method"] == COMPILED and "gpu_ms" in row}
    rows = [_row(row, compiled.get(_subject(row))) for row in found]
    head = f"## Tokens on {data['machine']['gpu']}\n"
    return "\n".join([head, filled(where(data)), filled(TOKENS.format(**data)), *table(_TOKENS, rows), ""])


def _subject(row: dict[str, Any]) -> str:
    return f"{row['model']}, {row['dtype']}, batch {row['batch']}, {row['positions']} positions"


def _row(row: dict[str, Any], compiled: float | None) -> list[str]:
    if "error" in row:
        return [_subject(row), row["method"], "failed: " + row["error"].replace("|", "/"), *[""] * 5]
    over = f"{row['gpu_ms'] / compiled:.2f}" if compiled and row["method"] == OURS else ""
    times = [f"{row['gpu_ms']:.2f}", over, f"{row['bandwidth']:.2f}", f"{row['host_us']:.0f}"]
    return [
        _subject(row),
        row["method"],
        *times,
        *(f"{row[k]:.0f}" if k in row else "" for k in ("ready_s", "stages_s")),
    ]


def steps(data: dict[str, Any]) -> str:
    """Where a step's time goes."""
    parts = [f"## The kernels of a token on {data['machine']['gpu']}\n", filled(where(data)), filled(STEPS)]
    for row in data["steps"]:
        dearest = sorted(row["step"], key=lambda each: -each["us"])
        parts += [
            f"### {_subject(row)}\n",
            *table(["module", "kernels", "µs", "MB", "GB/s"], map(_module, dearest)),
            "",
        ]
    return "\n".join(parts)


def _module(row: dict[str, Any]) -> list[str]:
    speed = f"{1e3 * row['mb'] / row['us']:.0f}" if row["mb"] else ""
    return [
        f"`{row['module']}`" if row["module"] else "",
        str(row["kernels"]),
        f"{row['us']:.0f}",
        f"{row['mb']:.0f}",
        speed,
    ]
