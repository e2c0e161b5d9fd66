"""docs/benchmarks.md and docs/models.md, a table each, from benchmarks/results; ``benchmarks.tables`` writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import figures, real_tables, sharded_tables, token_tables
from benchmarks.environment import RESULTS
from benchmarks.floors import floor_ms
from benchmarks.markdown import filled, table
from benchmarks.targets import alone, groups
from benchmarks.zoo_tables import OUTCOMES, outcome

DOCS: Final = Path(__file__).parent.parent / "docs"
SPEED, MODELS = DOCS / "benchmarks.md", DOCS / "models.md"
DATA: Final = "../benchmarks/results"
"""Where the pages look for the results; on the site they are in ``data`` (.ci/site.py)."""

SPEED_HEAD = """# Speed

After this page you know how fast compiled models are compared with eager PyTorch, `torch.compile` and Torch-TensorRT,
and which file has the details of each measurement. `python -m benchmarks.tables` writes the page.

Times are milliseconds of a call on the GPU: the latency of a call that the host waits for / the mean time of a call
when many are enqueued. *Ours* has `cuda_graphs=True`, *eager* is recorded in a CUDA graph if possible, and the two
others have their fastest mode. Compare only times in the same row. *Error* is our error divided by eager's error in the
same dtype, both against float32. [Models](models.md) has models at the sizes of real checkpoints.
"""
SPEED_COLUMNS = ["model", "dtype", "on", "ours", "eager", "torch.compile", "Torch-TensorRT", "error"]
FILES_HEAD = """
## The data

Each file contains the rows of one measurement, the date, the machine and the versions.
[The report of 29 November 2026](notes/2026-11-29-benchmarks.md) shows the files as tables and plots; `python -m
benchmarks.tables --note` writes such a report from the current files.
"""
KINDS: Final = {
    "attention": "forms of attention",
    "attribute_pairs": "pairs of layers that differ in one attribute",
    "builds": "engines built without a GPU",
    "captures": "capture beside torch.export",
    "compilations": "seconds to compile",
    "counts": "the GPU tests",
    "cutting": "partitioning large programs",
    "few_rows": "matmuls of few rows",
    "gains": "what each pass gains",
    "growth": "what our stages cost",
    "kept": "saving and loading",
    "kernels": "kernels that passes save",
    "layers": "profiles by layer",
    "onnx_files": "ONNX files, beside TensorRT's parser",
    "pairs": "keys of the engine cache",
    "profile": "kernels of a call",
    "profiles": "engines with several profiles",
    "prompts": "prompts of language models",
    "quantized": "quantized models",
    "ready": "the first token",
    "real": "models at the sizes of real checkpoints",
    "requests_per_second": "a server under load",
    "rows": "ways to run a model",
    "sharded": "sharded language models",
    "sizes": "sizes that vary, beside static programs",
    "starts": "starting a process",
    "steps": "kernels of a token",
    "suite": "tests of others",
    "tokens": "tokens of language models",
    "verified": "what verification costs",
    "zoo": "models of the zoo on a CPU",
    "zoo_gpu": "models of the zoo on a GPU",
    "zoo_kept": "models of the zoo, saved and loaded",
}
"""What a result measures, by the key of its rows."""

MODELS_HEAD = """# Models

After this page you know which models compile, how exact and how fast they are at real size, and how much of each
architecture runs in engines. `python -m benchmarks.tables` writes the page.

## At real size

Models with the shapes of real checkpoints and random weights, on the GPU before they are compiled (`python -m
benchmarks.real`). Times are milliseconds, on the GPU for a call that is awaited / for one of many that are not: *ours*
with `cuda_graphs=True`, and the *best other* of eager in a CUDA graph (where it can be recorded), `torch.compile` in
the modes that were measured, and Torch-TensorRT where it was. *Ratio* is ours to theirs in the measure that is worse
for us. The *floor* is what the GPU needs at least (`python -m benchmarks.floors`): all products at the speed of one
large matmul, or all weights, inputs and outputs at that of a copy; *share* is the floor's part of our time. *Error* is
ours relative to eager's in the same dtype, both measured against float32: at most 2, or 4 for networks of convolutions,
which have the bound of 2 with `use_fp32_acc=True` (*exact*). A model that chooses by its data (`routed`) has none. Rows
*with torch.compile* have the setting `torch_compile`.
"""
REAL_COLUMNS = ["model", "dtype", "on", "ours", "best other", "", "ratio", "floor", "share", "error"]
ZOO_HEAD = """
[The report of 29 November 2026](notes/2026-11-29-models.md) has each row's shapes, engines, seconds and reasons.

## Architectures

Each architecture is a small model with random weights, made from its configuration, that is compiled, run and compared
with eager PyTorch (`python -m benchmarks.zoo`). *One engine* counts those of which nothing runs in PyTorch. Names in
*italics* run in part in PyTorch, or are refused in one of several forms; names ~~struck through~~ are refused, mostly
by torch.export.
Results are of the dates in their files: [branches](notes/2026-11-29-branches.md) lists the models that decide by data,
which are refused since, or need `decisions="example"`. The report above has each model's errors, dims and reasons.
"""
MODELS_COLUMNS = ["kind", "agree with eager", "one engine", "refused", "architectures", "data"]
GPUS_HEAD = """
## On GPUs

With the model on the GPU before it is captured (`tests/gpu/test_zoo_gpu.py`). *Decided by rounding*: the elements that
differ change when matmuls are rounded otherwise. *Healed*: another form agrees, as `pipeline.verify("heal")` finds it.
*Exported otherwise*: the program agrees with its captured graph, which differs from the module.
"""


def speed(results: Path = RESULTS) -> str:
    """docs/benchmarks.md."""
    found = [data for data in figures.read(results) if not figures.earlier(data)]
    rows = [row for data in found for row in _measured(data)]
    ranks = [row for data in found for row in sharded_tables.table_rows(data)]
    parts = [row for data in found for row in sharded_tables.overhead_rows(data)]
    steps = [row for data in found for row in token_tables.summary(data, _on(data))]
    files = ([f"[{data['name']}]({DATA}/{data['name']}.json)", _kind(data), data["date"], _gpu(data)] for data in found)
    return "\n".join(
        [
            SPEED_HEAD,
            *table(SPEED_COLUMNS, rows),
            *((token_tables.SUMMARY_HEAD, *table(token_tables.SUMMARY_COLUMNS, steps)) if steps else ()),
            *((sharded_tables.HEAD, *table(sharded_tables.COLUMNS, ranks)) if ranks else ()),
            *((sharded_tables.OVERHEAD_HEAD, *table(sharded_tables.OVERHEAD_COLUMNS, parts)) if parts else ()),
            FILES_HEAD,
            *table(["file", "measures", "date", "GPU"], files),
            "\n## Plots\n",
            *(figures.image(plot, "plots") for data in found for plot in figures.of(data)),
        ]
    )


def _measured(data: dict[str, Any]) -> Iterator[list[str]]:
    """The rows of ``benchmarks.gpu``, by model, dtype and batch."""
    for (model, dtype, batch), rows in groups(data.get("rows", [])).items():
        if alone(rows):
            ours, eager = rows.get("pipeline + graph", {}), rows.get("eager + graph") or rows.get("eager", {})
            errors = [row["relative_error"] for row in (ours, eager) if row.get("relative_error")]
            error = f"{errors[0] / errors[1]:.1f}" if len(errors) == 2 else ""
            others = (_least(rows, "torch.compile"), _least(rows, "Torch-TensorRT"))
            times = map(_two, (ours, eager))
            yield [f"{model}, batch {batch}", dtype, _on(data), *times, *others, error]


def _least(rows: dict[str, Any], method: str) -> str:
    """The times of a method's mode that takes least on the GPU; "failed" if none ran."""
    found = [row for name, row in rows.items() if name.startswith(method)]
    timed = [row for row in found if "gpu_ms" in row]
    return _two(min(timed, key=lambda row: float(row["gpu_ms"]))) if timed else "failed" if found else ""


def _two(row: dict[str, Any]) -> str:
    """The two measures of a row of ``benchmarks.gpu``: of a call that is awaited, and of one of many that are not."""
    if "gpu_ms" not in row:
        return ""
    return _both({"gpu_ms": row["gpu_ms"], "queued_ms": 1e3 / row["calls_per_second"]})


def _real(data: dict[str, Any]) -> Iterator[list[str]]:
    """The rows of ``benchmarks.real`` whose times are compared with others, and with the floor if it is known."""
    for row in data.get("real", []):
        times = dict(row.get("ms", {}))
        ours = times.pop(real_tables.OURS, None)
        if "failed" in row or ours is None or not times:
            continue
        name, best = min(times.items(), key=lambda each: float(each[1]["gpu_ms"]))
        floor = floor_ms(row, data.get("speeds"))
        error = "routed" if row.get("routed") else f"{row['ratio']:.1f}"
        ratio = max(ours[each] / best[each] for each in ours)
        known = floor is not None and floor <= ours["gpu_ms"]  # else other work slowed what it was measured by
        least = ["", ""] if not known else [f"{floor:.3g}", f"{floor / ours['gpu_ms']:.0%}"]
        yield [_title(row), row["dtype"], _on(data), _both(ours), _both(best), name, f"{ratio:.2f}", *least, error]


def _untimed(data: dict[str, Any]) -> Iterator[str]:
    """What is known of the other rows: their errors, and where those that failed did."""
    rows = [row for row in data["real"] if "failed" in row or len(row.get("ms", {})) < 2]
    right = (f"{_title(row)} in {row['dtype']} {row['ratio']:.1f}" for row in rows if "failed" not in row)
    failed = (f"{_title(row)} ({row['failed']['phase']})" for row in rows if "failed" in row)
    for said, names in (("Errors of rows that were compared alone", right), ("Failed", failed)):
        if found := ", ".join(names):
            yield filled(f"{_on(data)}. {said}: {found}.")


def _title(row: dict[str, Any]) -> str:
    return f"{row['name']}{real_tables.form(row)}"


def _both(times: dict[str, float]) -> str:
    return f"{times['gpu_ms']:.3g} / {times['queued_ms']:.3g}"


def _gpu(data: dict[str, Any]) -> str:
    return (data["machine"].get("gpu") or "").removeprefix("NVIDIA ").split(" ")[0]


def _on(data: dict[str, Any]) -> str:
    """The GPU, and the version of TensorRT up to its second number: H200, RTX 1.6."""
    library = next(name for name in ("tensorrt_rtx", "tensorrt") if name in data["versions"])
    version = ".".join(data["versions"][library].split(".")[:2])
    return f"{_gpu(data)}, {'RTX' if library == 'tensorrt_rtx' else 'TensorRT'} {version}"


def _kind(data: dict[str, Any]) -> str:
    return next((said for key, said in KINDS.items() if key in data), "")


def models(results: Path = RESULTS) -> str:
    """docs/models.md."""
    found = figures.read(results)
    zoo = [_table_row(data) for data in found if "zoo" in data]
    runs = [data for data in found if "zoo_gpu" in data]
    gpus = ([_on(run), run["products"], *_outcomes(run), f"[data]({DATA}/{run['name']}.json)"] for run in runs)
    lines = table(["on", "float32 matmuls in", "right", "otherwise", "data"], gpus)
    real = [row for data in found for row in _real(data)]
    of_real = [data for data in found if "real" in data]
    notes = [text for data in of_real for text in _untimed(data)]
    notes += [filled(f"{_on(data)}, {data['date']}: {data['note']}") for data in of_real if "note" in data]
    first = [MODELS_HEAD, *table(REAL_COLUMNS, real), *("", *notes) * bool(notes)]
    return "\n".join([*first, ZOO_HEAD, *table(MODELS_COLUMNS, zoo), GPUS_HEAD, *lines, ""])


def _table_row(data: dict[str, Any]) -> list[str]:
    """A kind of models: how many agree, and the names of all."""
    rows = data["zoo"]
    compiled = [row for row in rows if "nodes" in row and "wrong" not in row]
    whole = [row for row in compiled if row["engines"] == 1 and not row["fallbacks"]]
    parted = {row["name"] for row in rows if row not in whole}
    refused = {row["name"] for row in rows} - {row["name"] for row in compiled}
    marks = {**dict.fromkeys(parted, "*"), **dict.fromkeys(refused, "~~")}
    names = (f"{marks.get(name, '')}{name}{marks.get(name, '')}" for name in sorted({row["name"] for row in rows}))
    counts = [f"{len(compiled)} of {len(rows)}", str(len(whole)), str(len(rows) - len(compiled) or "")]
    return [data["table"], *counts, ", ".join(names), f"[data]({DATA}/{data['name']}.json)"]


def _outcomes(run: dict[str, Any]) -> list[str]:
    counts = Counter(map(outcome, run["zoo_gpu"]))
    rest = ", ".join(f"{counts[each]} {each}" for each in OUTCOMES[1:] if counts[each])
    return [f"{counts['right']} of {len(run['zoo_gpu'])}", rest]
