"""``python -m benchmarks.tables`` writes docs/benchmarks.md, docs/models.md, their plots and the tables of
docs/versions.md and docs/testing.md from benchmarks/results; with ``--note`` also a report of today to docs/notes.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    figures,
    gpu_tables,
    onnx_files,
    plots,
    quantized_tables,
    real_tables,
    sharded_tables,
    summaries,
    token_tables,
    version_tables,
    zoo_tables,
)
from benchmarks.environment import RESULTS
from benchmarks.markdown import filled, table, where
from benchmarks.suites import summary

NOTES = summaries.DOCS / "notes"
HEAD = """# Benchmarks

What compiling and running cost with `pipeline`, beside eager PyTorch, `torch.compile`, Torch-TensorRT and the bare
engine. Compare the columns of one table, never those of two: each table is one run, and says when and on what it was
measured.

`python -m benchmarks.capture` measures capture beside torch.export, and `python -m benchmarks.stages` what compiling
costs after it; neither needs a GPU. `python -m benchmarks.gpu` compares ways to run models on one GPU, `python -m
benchmarks.gpu_compile` how long compiling takes. `python -m benchmarks.tables --note` writes this report from the files
in `benchmarks/results`.
"""


def page(results: Path = RESULTS) -> str:
    """The whole report: a section for each result, those of one kind together; one of an unknown kind is left out."""
    found = figures.read(results)
    now = [data for data in found if not figures.earlier(data)]
    parts = [write(data) for key, write in SECTIONS.items() for data in now if key in data]
    parts += [gains(data) for data in found if figures.earlier(data) and "gains" in data]
    return "\n".join([HEAD, *parts])


def stages(data: dict[str, Any]) -> str:
    """What compiling costs."""
    chains = data["growth"]["chains"]
    return "\n".join(
        [
            "## What compiling costs\n",
            filled(where(data)),
            filled(TIME.format(by_stage=_by_stage(data["time"]), **data["time"])),
            filled(GROWTH.format(**data["growth"])),
            *table([f"{c['nodes']} nodes" for c in chains], [[f"{c['milliseconds_per_node']:.3f}" for c in chains]]),
            "",
            *map(figures.image, figures.of(data)),
            filled(MEMORY),
            *table(_MEMORY, map(_memory_row, data["memory"])),
            "",
        ]
    )


TIME = """**Time.** Our own stages, without torch.export and TensorRT's build, take {median_seconds:.2f} s of processor
time for {model} ({nodes} nodes): {by_stage}. The first compilation of a process takes {first_seconds:.2f} s; the target
is {target_seconds} s. They run in one thread. The clock of this machine, busy with other work, showed
{median_wall_seconds:.2f} s for them, and {build_wall_seconds} s for TensorRT's build.
"""

GROWTH = """**Growth.** Milliseconds of processor time per node, on chains of operators: a node of a longer chain costs
at most {growth} times one of the shortest; the target is {target_growth}.
"""

MEMORY = """**Memory.** Peak of the resident set, children included, above what the process held before `decompose`, in
multiples of the weights' bytes; the target is 2. `build` is TensorRT's. Its fixed share is that of a similar
network with hardly any weights. Anonymous memory cannot be dropped by the system, unlike memory-mapped files.
"""

_MEMORY = [
    "model",
    "weights",
    "`decompose` to `convert`",
    "`build`",
    "`refit_map`",
    "fixed share of `build`",
    "peak without it",
    "peak of anonymous memory",
    "left at the end",
]


def _by_stage(time: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` {1e3 * value:.0f} ms" for name, value in time["median_seconds_by_stage"].items())


def _memory_row(row: dict[str, Any]) -> list[str]:
    peaks = dict(row["peak_over_weights_by_stage"])
    build, last = peaks.pop("build"), peaks.pop("refit_map", 0.0)
    return [
        row["model"],
        f"{row['weights_bytes'] / 1e6:.0f} MB",
        f"{max(peaks.values()):.2f}",
        f"{build:.2f}",
        f"{max(last, 0):.2f}",
        f"{row['fixed_bytes'] / 1e6:.0f} MB",
        f"{row['rest_over_weights']:.2f}",
        *(f"{row[name]:.2f}" if name in row else "" for name in ("anonymous_over_weights", "left_over_weights")),
    ]


def partitions(data: dict[str, Any]) -> str:
    """How long cutting takes, and models of which engines refuse a tenth of the operators."""
    nodes = list(data["cutting"][0]["seconds"])
    return "\n".join(
        [
            "## Cutting programs\n",
            filled(where(data)),
            filled(CUTTING),
            *table(["partitioner", "refused", *nodes, "growth", "segments"], map(_cutting_row, data["cutting"])),
            "",
            *map(figures.image, figures.of(data)),
            filled(REFUSING),
            *table(_REFUSING, map(_refusing_row, data["refusing"])),
            "",
        ]
    )


CAPTURE = """Processor time of `pipeline.capture` in multiples of torch.export's own call for the same module, inputs
and dynamic dims, over {count} architectures of the zoo that torch.export captures{part}: {median} in the median,
{worst} at most; the targets are {limits[median]} and {limits[worst]}. It refuses {refused} others, for their dims or
because data decides; beside them stands its time until it does. The most expensive:
"""

_CAPTURE = ["architecture", "operators", "torch.export", "`pipeline.capture`", "ratio"]


def captures(data: dict[str, Any]) -> str:
    """What capture takes beside torch.export."""
    worst = sorted(data["captures"], key=lambda row: -row["ratio"])[:12]
    rows = [
        [
            f"{row['name']}, {row['task']}",
            str(row["nodes"]),
            f"{row['export_seconds']:.2f} s" + (" (refused)" if row["refused"] else ""),
            f"{row['capture_seconds']:.2f} s",
            f"{row['ratio']:.2f}",
        ]
        for row in worst
    ]
    part = f" (each {data['every']}th)" if data["every"] > 1 else ""
    refused = sum(row["refused"] for row in data["captures"])
    counts = {"count": len(data["captures"]) - refused, "refused": refused}
    said = CAPTURE.format(**counts, part=part, limits=data["targets"], **data)
    return "\n".join(["## What capture takes\n", filled(where(data)), filled(said), *table(_CAPTURE, rows), ""])


CUTTING = """Seconds of processor time to cut programs of so many operators, of which engines refuse a share at random.
The targets are 5 s for 10,000 operators, and a growth of at most 1.5: how much dearer an operator of the largest
program is than one of the smallest. Segments are those of the largest.
"""

REFUSING = """Engines refuse a tenth of the operators of ResNet-50 and BERT-base, drawn by a seed; the rest runs on the
reference executor. No engine is smaller than `min_block_size`, and the error is relative to the largest output.
"""

_REFUSING = ["model, seed", "engines", "operators in engines", "smallest engine", "crossing cuts", "relative error"]


def _cutting_row(row: dict[str, Any]) -> list[str]:
    times = [f"{seconds:.2f}" for seconds in row["seconds"].values()]
    return [f"`{row['partitioner']}`", f"{row['refused']:.0%}", *times, f"{row['growth']:.2f}", str(row["segments"])]


def _refusing_row(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['model']}, {row['seed']}",
        str(row["engines"]),
        f"{row['operators_in_engines']} of {row['operators']}",
        f"{row['smallest_engine']} (`min_block_size` {row['min_block_size']})",
        f"{row['bytes_crossing'] / 1e6:.1f} MB",
        f"{row['relative_error']:.1e}",
    ]


GAINS = """Milliseconds on the GPU of the engine driven by hand with a CUDA graph, without any pass of `improve`, with
all, and with all but one; a pass that changes nothing in a model has no row there. The ratio is to all passes: above
1, the pass that is left out gains.
"""


def gains(data: dict[str, Any]) -> str:
    """What each pass gains."""
    rows = [
        [row["model"], row["passes"], str(row["layers"]), f"{row['gpu_ms']:.3f}", f"{row['over_all']:.3f}"]
        for row in data["gains"]
    ]
    earlier = ", earlier" if figures.earlier(data) else ""
    head = f"## What the passes gain on {data['machine']['gpu']}{earlier}\n"
    lines = table(["model", "passes", "layers", "GPU ms", "over all passes"], rows)
    return "\n".join([head, filled(where(data)), filled(GAINS), *lines, ""])


ATTENTION = """Four attentions of 12 heads of 64, one after the other, in float16: TensorRT's layer, with a mask of
bools or of numbers, and the products and the softmax in float32 that a model spells out. Milliseconds of the engine
driven by hand with a CUDA graph (its kernels); errors relative to float64.
"""


def attention(data: dict[str, Any]) -> str:
    """The forms of attention."""
    forms = list(dict.fromkeys(row["form"] for row in data["attention"]))
    groups: dict[tuple[int, int, str], dict[str, dict[str, Any]]] = {}
    for row in data["attention"]:
        groups.setdefault((row["batch"], row["sequence"], row["mask"]), {})[row["form"]] = row
    rows = [
        [f"{batch} x {length}", mask, *(_form(found[form]) if form in found else "" for form in forms)]
        for (batch, length, mask), found in groups.items()
    ]
    head = f"## Forms of attention on {data['machine']['gpu']}\n"
    return "\n".join([head, filled(where(data)), filled(ATTENTION), *table(["shape", "mask", *forms], rows), ""])


def _form(row: dict[str, Any]) -> str:
    return f"{row['gpu_ms']:.3f} ({row['kernels']}), {row['relative_error']:.1e}"


KERNELS = """Kernels of an engine for float16, batch 1, as `python -m benchmarks.kernels` reads them in its plan, which
needs no GPU: all, those that are products or convolutions, those that are a whole attention, and the rest. Plans for
compute capability {capability}.
"""


def kernels(data: dict[str, Any]) -> str:
    """What each pass saves of the kernels."""
    counts = ("kernels", "products", "attentions", "others")
    rows = [[row["model"], row["passes"], *(str(row[count]) for count in counts)] for row in data["kernels"]]
    head = "## What the passes save of an engine's kernels\n"
    lines = table(["model", "passes", "kernels", "products", "attentions", "others"], rows)
    return "\n".join([head, filled(where(data)), filled(KERNELS.format(**data)), *lines, ""])


def tests(data: dict[str, Any]) -> str:
    """The GPU tests: what passed, file by file, and what did not."""
    machine, counts, part = data["machine"], data["counts"], data.get("only", "")
    rows = [
        [name, *(str(found.get(kind, 0)) for kind in ("passed", "failed", "skipped"))] for name, found in counts.items()
    ]
    missed = [f"- `{name}`: {why.replace('|', '/')}" for name, why in data["not_passed"].items()]
    return "\n".join(
        [
            f"## GPU tests, float32 products in {data['products']}, on {machine['gpu']}\n",
            filled(where(data) + (f" A part of the tests, later than the whole: {part}." if part else "")),
            *table(["tests", "passed", "failed", "skipped"], rows),
            "",
            *(["Not passed:", "", *missed, ""] if missed else []),
        ]
    )


SECTIONS = {
    "rows": gpu_tables.gpu,
    "compilations": gpu_tables.compilations,
    "sizes": real_tables.sizes,
    "profiles": gpu_tables.profiles,
    "profile": gpu_tables.profile,
    "layers": gpu_tables.layers,
    "starts": gpu_tables.starts,
    "tokens": token_tables.tokens,
    "prompts": token_tables.prompts,
    "ready": token_tables.ready,
    "steps": token_tables.steps,
    "few_rows": token_tables.few_rows,
    "onnx_files": onnx_files.section,
    "captures": captures,
    "growth": stages,
    "cutting": partitions,
    "gains": gains,
    "attention": attention,
    "kernels": kernels,
    "quantized": quantized_tables.quantized,
    "counts": tests,
}
"""What writes the section of a result that has this key, in the order of the page."""


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the pages and what is not current of their plots; 1 if it could not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--note", action="store_true", help="write today's report with all tables, too")
    today = datetime.date.today().isoformat()
    pages = {
        summaries.SPEED: summaries.speed(),
        summaries.MODELS: summaries.models(),
        version_tables.PAGE: version_tables.page(),
        sharded_tables.PAGE: sharded_tables.page(),
        summary.PAGE: summary.page(),
    }
    if parser.parse_args(argv).note:
        pages |= {NOTES / f"{today}-benchmarks.md": page(), NOTES / f"{today}-models.md": zoo_tables.page()}
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
        print(f"written to {path}")
    return plots.refresh()


if __name__ == "__main__":
    sys.exit(main())
