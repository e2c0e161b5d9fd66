"""``python -m benchmarks.tables`` writes docs/benchmarks.md and docs/models.md from benchmarks/results."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import zoo_tables
from benchmarks.environment import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Written by `python -m benchmarks.tables` from the files in `benchmarks/results`; each says when and on what it was
measured. `python -m benchmarks.stages` measures what compiling costs and needs no GPU; `python -m benchmarks.gpu`
compares ways to run models on one GPU, all in one run: compare the columns of a table, never those of two.
"""


def page(results: Path = RESULTS) -> str:
    """The whole page; a result of a kind it does not know is left out."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    parts = [stages(data) for data in found if "growth" in data] + [gpu(data) for data in found if "rows" in data]
    parts += [gains(data) for data in found if "gains" in data] + [dynamic(data) for data in found if "dynamic" in data]
    parts += [attention(data) for data in found if "attention" in data]
    parts += [kernels(data) for data in found if "kernels" in data]
    parts += [partitions(data) for data in found if "cutting" in data]
    parts += [tests(data) for data in found if "counts" in data]
    return "\n".join([HEAD, *parts])


def stages(data: dict[str, Any]) -> str:
    """What compiling costs."""
    chains = data["growth"]["chains"]
    return "\n".join(
        [
            "## What compiling costs\n",
            _filled(_where(data)),
            _filled(TIME.format(by_stage=_by_stage(data["time"]), **data["time"])),
            _filled(GROWTH.format(**data["growth"])),
            *_table([f"{c['nodes']} nodes" for c in chains], [[f"{c['milliseconds_per_node']:.3f}" for c in chains]]),
            "",
            _filled(MEMORY),
            *_table(_MEMORY, map(_memory_row, data["memory"])),
            "",
        ]
    )


TIME = """**Time.** Our own stages, without torch.export and TensorRT's build, take {median_seconds:.2f} s of processor
time for {model} ({nodes} nodes): {by_stage}. The first compilation of a process takes {first_seconds:.2f} s; the target
is {target_seconds} s. They run in one thread. On this machine, as busy as it was, the clock showed
{median_wall_seconds:.2f} s for them, and {build_wall_seconds} s for TensorRT's build.
"""

GROWTH = """**Growth.** Milliseconds of processor time per node, on chains of operators: a node of a longer chain costs
at most {growth} times one of the shortest; the target is {target_growth}.
"""

MEMORY = """**Memory.** Peak of the resident set, children included, above what the process held before `decompose`, in
multiples of the weights' bytes; the target is 2. `build` is TensorRT's. Its fixed share is what it takes for a like
network with hardly any weights. Anonymous memory is what the system cannot drop: not files that are mapped.
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


def _filled(paragraph: str) -> str:
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False) + "\n"


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
            _filled(_where(data)),
            _filled(CUTTING),
            *_table(["partitioner", "refused", *nodes, "growth", "segments"], map(_cutting_row, data["cutting"])),
            "",
            _filled(REFUSING),
            *_table(_REFUSING, map(_refusing_row, data["refusing"])),
            "",
        ]
    )


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


def gpu(data: dict[str, Any]) -> str:
    """Ways to run a model, a table for each model, dtype and batch."""
    groups = dict.fromkeys((row["model"], row["dtype"], row["batch"]) for row in data["rows"])
    lines = [f"## On {data['machine']['gpu']}\n", _filled(_where(data))]
    for model, dtype, batch in groups:
        rows = [row for row in data["rows"] if (row["model"], row["dtype"], row["batch"]) == (model, dtype, batch)]
        lines += [f"### {model}, {dtype}, batch {batch}\n", *_table(list(_GPU), map(_gpu_row, rows)), ""]
    return "\n".join(lines)


_GPU = {
    "method": "{method}",
    "GPU ms": "{gpu_ms:.3f}",
    "over the raw engine": "{over_raw:.2f}",
    "over it with a graph": "{over_raw_graph:.2f}",
    "host µs a call": "{host_us:.0f}",
    "calls/s": "{calls_per_second:.0f}",
    "compile s": "{compile_seconds:.1f}",
    "host MB": "{host_peak_mb}",
    "GPU MB": "{device_mb}",
    "error": "{relative_error:.1e}",
}
"""The columns of a GPU table, and how a row fills them; the error is relative to eager in float32."""


def _gpu_row(row: dict[str, Any]) -> list[str]:
    if "failed" in row:
        return _failed(row, len(_GPU))
    return [_cell(form, row) for form in _GPU.values()]


def _failed(row: dict[str, Any], columns: int) -> list[str]:
    return [row["method"], f"failed: {row['failed'].replace('|', '/')}", *[""] * (columns - 2)]


def _cell(form: str, row: dict[str, Any]) -> str:
    try:
        return form.format(**row)
    except KeyError:
        return ""


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
    head = f"## What the passes gain on {data['machine']['gpu']}\n"
    table = _table(["model", "passes", "layers", "GPU ms", "over all passes"], rows)
    return "\n".join([head, _filled(_where(data)), _filled(GAINS), *table, ""])


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
    return "\n".join([head, _filled(_where(data)), _filled(ATTENTION), *_table(["shape", "mask", *forms], rows), ""])


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
    table = _table(["model", "passes", "kernels", "products", "attentions", "others"], rows)
    return "\n".join([head, _filled(_where(data)), _filled(KERNELS.format(**data)), *table, ""])


DYNAMIC = """{model} in {dtype} with dynamic batch and sequence: milliseconds on the GPU (microseconds of the host) for
each shape, and how much longer a call takes when the shape changes at every call.
"""


def dynamic(data: dict[str, Any]) -> str:
    """One engine for many shapes."""
    ran = [row for row in data["dynamic"] if "failed" not in row]
    shapes = [f"{s['batch']} x {s['sequence']}" for s in ran[0]["shapes"]]
    rows = [
        [r["method"], *(f"{s['gpu_ms']:.3f} ({s['host_us']:.0f})" for s in r["shapes"]), f"{r['ratio']:.2f}"]
        for r in ran
    ]
    rows += [_failed(row, len(shapes) + 2) for row in data["dynamic"] if "failed" in row]
    head = f"## Changing shapes on {data['machine']['gpu']}\n"
    return "\n".join(
        [
            head,
            _filled(_where(data)),
            _filled(DYNAMIC.format(**data)),
            *_table(["method", *shapes, "changing"], rows),
            "",
        ]
    )


def tests(data: dict[str, Any]) -> str:
    """The GPU tests: what passed, file by file, and what did not."""
    machine, counts, part = data["machine"], data["counts"], data.get("only", "")
    rows = [
        [name, *(str(found.get(kind, 0)) for kind in ("passed", "failure", "skipped"))]
        for name, found in counts.items()
    ]
    missed = [f"- `{name}`: {why.replace('|', '/')}" for name, why in data["not_passed"].items()]
    return "\n".join(
        [
            f"## GPU tests, float32 products in {data['products']}, on {machine['gpu']}\n",
            _filled(_where(data) + (f" A part of the tests, later than the whole: {part}." if part else "")),
            *_table(["tests", "passed", "failed", "skipped"], rows),
            "",
            *(["Not passed:", "", *missed, ""] if missed else []),
        ]
    )


def _where(data: dict[str, Any]) -> str:
    machine, versions = data["machine"], data["versions"]
    note = f" {data['note']}" if data.get("note") else ""
    place = ", ".join(filter(None, [machine["gpu"], f"{machine['cpu']}, {machine['cores']} cores"]))
    found = ", ".join(f"{name} {value}" for name, value in versions.items())
    return f"Measured on {data['date']}: {place}; {found}.{note}"


def _table(header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    for cells in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    """Writes the page."""
    PAGE.parent.mkdir(exist_ok=True)
    for path, text in ((PAGE, page()), (zoo_tables.PAGE, zoo_tables.page())):
        path.write_text(text, encoding="utf-8")
        print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
