"""The parts of the report of benchmarks that ``benchmarks.tokens`` measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.markdown import filled, table, where

TOKENS = """A step of a decoder with random weights, like Llama where no name is given, decodes one token for each
row, at the last position of the cache, or a prompt that fills its last positions. Configurations got ready in processes
side by side, and each was measured while the others waited. GPU ms is a step's time, "over torch.compile" ours in
multiples of transformers' static cache under `torch.compile(mode="reduce-overhead")` in the same process and turn; the
target is 0.67. Bandwidth is that of the weights which a step reads, in parts of what a copy reaches there ({copy_gb_s}
GB/s, read and written); the aim is 0.8. Host µs is the time until a call returns, in parentheses that of the turn of
six in which it was least.
"""

PROMPTS = """A step of such a decoder for a prompt of {prompt} tokens, which fill the last positions of the cache. "Over
torch.compile" as above; ours gives the logits of the last token, and the static cache's step those of all.
"""

READY = """How soon `compile_for_generation` and the first step give the first token of such a decoder, in seconds: in a
process that has compiled a layer before, alone on the machine. The target is 15 s without torch.export for 1.1 billion
parameters at batch 1. Host GB is the most that the process needs meanwhile above what it held before; GPU GB what it
holds afterwards beside the model.
"""

STEPS = """The kernels of such a step by the module they belong to, all layers together, as TensorRT's profiler measures
them, which may add a few µs to each. GB/s is that of the weights which they read.
"""

FEW_ROWS = """Six layers of such a decoder without their attention, in float16, by a replayed CUDA graph
(`python -m benchmarks.few_rows`): microseconds of a layer, and GB/s of the weights that it reads. Each column of a
product is a *sum* over products of numbers in float32, or in float16, instead of a linear layer's; weights are
constants of the engine, or *inputs*, which are copied before a call where they have up to 16 MiB. The last columns have
a layer's kernels and their microseconds, which the profiler makes a little longer, without such copies.
"""

SUMMARY_HEAD = """
## Tokens and prompts of language models

Decoders with random weights (Llama, unless the name is of another architecture) run with default settings and
`cuda_graphs=True`. A *decoder step* is one call, for a token or a whole prompt, after which the KV cache is full. Each
cell has two times in milliseconds: of a step when the CPU waits after each step / when steps are enqueued one after the
other. The column `torch.compile` is transformers' model with a static cache and `mode="reduce-overhead"`. *Ratio* is
*ours* divided by `torch.compile`: the larger one of the ratios of both times. *Copy* is the bandwidth at which our step
reads weights, in percent of the bandwidth of a copy on the GPU.
"""
SUMMARY_COLUMNS = ["model", "dtype", "batch", "positions", "tokens", "on", "ours", "torch.compile", "ratio", "copy"]
OURS, COMPILED = ("pipeline + graph", "pipeline + graph, prompt_lens"), "static cache, reduce-overhead"
_TOKENS = ["model", "way", "GPU ms", "over torch.compile", "bandwidth", "host µs"]
_READY = ["model", "without torch.export", "torch.export", "dearest stages", "first step", "host GB", "GPU GB"]


def tokens(data: dict[str, Any]) -> str:
    """A token's milliseconds, by model and way."""
    order = list(dict.fromkeys(map(_subject, data["tokens"])))
    found = sorted(data["tokens"], key=lambda row: order.index(_subject(row)))
    compiled = {_subject(row): row["gpu_ms"] for row in found if row["method"] == COMPILED and "gpu_ms" in row}
    rows = [_row(row, compiled.get(_subject(row))) for row in found]
    head = f"## Tokens on {data['machine']['gpu']}\n"
    return "\n".join([head, filled(where(data)), filled(TOKENS.format(**data)), *table(_TOKENS, rows), ""])


def summary(data: dict[str, Any], on: str) -> Iterator[list[str]]:
    """Yield a row for each step of ours that was measured beside torch.compile's in one run, both measures there."""
    fields = ("model", "dtype", "batch", "positions", "tokens")
    found = {(*(row.get(field, 1) for field in fields), row["method"]): row for row in data.get("tokens", [])}
    for (*step, method), row in found.items():
        other = found.get((*step, COMPILED))
        if method == OURS[0] and other and all("calls_per_second" in each for each in (row, other)):
            ours, theirs = ((each["gpu_ms"], 1e3 / each["calls_per_second"]) for each in (row, other))
            ratio = max(a / b for a, b in zip(ours, theirs, strict=True))
            times = (f"{a:.3g} / {b:.3g}" for a, b in (ours, theirs))
            copy = f"{100 * row['bandwidth']:.0f}%" if "bandwidth" in row else ""
            yield [*map(str, step), on, *times, f"{ratio:.2f}", copy]


def prompts(data: dict[str, Any]) -> str:
    """A prompt's milliseconds, by model and way."""
    compiled = {_subject(row): row.get("gpu_ms") for row in data["prompts"] if row["method"] == COMPILED}
    every = (_row(row, compiled.get(_subject(row))) for row in data["prompts"])
    rows = [[*row[: len(row) - 2], row[-1]] for row in every]
    head = f"## Prompts on {data['machine']['gpu']}\n"
    columns = [column for column in _TOKENS if column != "bandwidth"]
    return "\n".join([head, filled(where(data)), filled(PROMPTS.format(**data)), *table(columns, rows), ""])


def ready(data: dict[str, Any]) -> str:
    """Seconds until the first token."""
    head = f"## The first token on {data['machine']['gpu']}\n"
    return "\n".join([head, filled(where(data)), filled(READY), *table(_READY, map(_first, data["ready"])), ""])


def _first(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [_subject(row), _failed(row), *[""] * 5]
    dearest = sorted(row["stages_s"].items(), key=lambda each: -each[1])[:3]
    return [
        _subject(row),
        f"{row['ready_s'] - row['export_s']:.1f}",
        f"{row['export_s']:.1f}",
        ", ".join(f"`{stage}` {seconds:.1f}" for stage, seconds in dearest),
        f"{row['first_call_s']:.1f}",
        *(f"{row[of] / 1e3:.1f}" for of in ("host_peak_mb", "device_mb")),
    ]


def _failed(row: dict[str, Any]) -> str:
    return "failed: " + row["error"].replace("|", "/")


def _subject(row: dict[str, Any]) -> str:
    subject = f"{row['model']}, {row['dtype']}, batch {row['batch']}, {row['positions']} positions"
    return subject + (_prompt(row["tokens"]) if "step" not in row and "tokens" in row else "")


def _row(row: dict[str, Any], compiled: float | None) -> list[str]:
    if "error" in row:
        return [_subject(row), row["method"], _failed(row), *[""] * 3]
    over = f"{row['gpu_ms'] / compiled:.2f}" if compiled and row["method"] in OURS else ""
    read = f"{row['bandwidth']:.2f}" if "bandwidth" in row else ""
    quiet = f" ({row['host_us_quiet']:.0f})" if "host_us_quiet" in row else ""
    times = [f"{row['gpu_ms']:.2f}", over, read, f"{row['host_us']:.0f}{quiet}"]
    return [_subject(row), row["method"], *times]


def steps(data: dict[str, Any]) -> str:
    """Where a step's time goes."""
    parts = [f"## The kernels of a token on {data['machine']['gpu']}\n", filled(where(data)), filled(STEPS)]
    for row in (each for each in data["steps"] if "step" in each):
        dearest = sorted(row["step"], key=lambda each: -each["us"])
        parts += [
            f"### {_subject(row)}{_prompt(row['tokens'])}\n",
            *table(["module", "kernels", "µs", "MB", "GB/s"], map(_module, dearest)),
            "",
        ]
    return "\n".join(parts)


def _prompt(tokens: int) -> str:
    return f", a prompt of {tokens} tokens" if tokens > 1 else ""


def _module(row: dict[str, Any]) -> list[str]:
    speed = f"{1e3 * row['mb'] / row['us']:.0f}" if row["mb"] else ""
    return [
        f"`{row['module']}`" if row["module"] else "",
        str(row["kernels"]),
        f"{row['us']:.0f}",
        f"{row['mb']:.0f}",
        speed,
    ]


def few_rows(data: dict[str, Any]) -> str:
    """Products of few rows, by form."""
    rows = [
        [
            f"{row['model']}, {row['rows']} row{'s' * (row['rows'] > 1)}",
            row["form"],
            *([row["failed"], "", "", "", ""] if "failed" in row else _products(row)),
        ]
        for row in data["few_rows"]
    ]
    head = f"## Products of few rows on {data['machine']['gpu']}\n"
    columns = ["model", "form", "µs a layer", "GB/s", "kernels", "their µs", "error"]
    return "\n".join([head, filled(where(data)), filled(FEW_ROWS), *table(columns, rows), ""])


def _products(row: dict[str, Any]) -> list[str]:
    """A layer's time, and its share of the kernels of all six."""
    own = sum(microseconds for _, microseconds in row["kernels"]) / 6
    numbers = f"{row['layer_us']:.1f}", str(row["gb_s"]), f"{len(row['kernels']) / 6:.0f}", f"{own:.1f}"
    return [*numbers, f"{row['error']:.0e}"]
