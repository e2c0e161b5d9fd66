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

Each cell has two times in milliseconds of GPU time: the latency of one call that the CPU waits for / the mean time of
a call when many calls are enqueued. *Ours* is measured with `cuda_graphs=True`. *Eager* is PyTorch in a CUDA graph, if
one can be recorded. `torch.compile` and Torch-TensorRT use their fastest mode. Compare only times in the same row.
*Error* is our error divided by eager's error in the same dtype; both are differences from the float32 result.
[Models](models.md) has models at the sizes of real checkpoints.
"""
SPEED_COLUMNS = ["model", "dtype", "on", "ours", "eager", "torch.compile", "Torch-TensorRT", "error"]
FILES_HEAD = """
## The data

Each file contains the results of one benchmark, with the date, the machine and the library versions. A
[report](notes/2026-11-29-benchmarks.md) shows these files as tables and plots; `python -m benchmarks.tables --note`
writes a new report from the current files.
"""
KINDS: Final = {
    "attention": "variants of attention",
    "attribute_pairs": "pairs of layers that differ in one attribute",
    "builds": "engines built without a GPU",
    "captures": "seconds to capture, compared with torch.export",
    "compilations": "seconds to compile",
    "counts": "results of the GPU tests",
    "cutting": "partitioning large programs",
    "few_rows": "matmuls with few rows",
    "gains": "time saved by each graph pass",
    "growth": "time and memory of our compilation stages",
    "kept": "saving and loading",
    "kernels": "number of kernels with and without graph passes",
    "layers": "GPU time by layer",
    "onnx_files": "ONNX files, compared with TensorRT's ONNX parser",
    "pairs": "which changes of a model change its engine cache key",
    "profile": "kernels of a call",
    "profiles": "engines with several profiles",
    "prompts": "time to process prompts of language models",
    "quantized": "quantized models",
    "ready": "seconds until a language model's first token",
    "real": "models at the sizes of real checkpoints",
    "requests_per_second": "requests per second of a server under load",
    "rows": "models in eager, torch.compile, Torch-TensorRT and pipeline",
    "sharded": "sharded language models",
    "sizes": "dynamic shapes, compared with static shapes",
    "starts": "seconds from the start of a process to the first result",
    "steps": "GPU time of a token's kernels",
    "suite": "test suites of other projects",
    "tokens": "time to generate tokens",
    "verified": "time of `pipeline.verify`",
    "zoo": "small models of public architectures, on a CPU",
    "zoo_gpu": "small models of public architectures, on a GPU",
    "zoo_kept": "small models of public architectures, saved and loaded",
}
"""What a result measures, by the key of its rows."""

MODELS_HEAD = """# Models

After this page you know which models compile, how exact and how fast they are at real size, and how much of each
architecture runs in engines. `python -m benchmarks.tables` writes the page.

## At real size

The models of this table have the shapes of real checkpoints and random weights (`python -m benchmarks.real`). Each
cell has two times in milliseconds: the latency of one call that the CPU waits for / the mean time of a call when many
calls are enqueued.

- *Ours* is measured with `cuda_graphs=True`. Rows *with torch.compile* also use the setting `torch_compile`.
- *Best other* is the fastest of eager PyTorch (in a CUDA graph if one can be recorded), `torch.compile`, and
  Torch-TensorRT, as far as these were measured; the next column names it.
- *Ratio* is *ours* divided by *best other*: the larger one of the ratios of the latencies and of the mean times.
- *Floor* is a lower bound of the GPU's time (`python -m benchmarks.floors`), the longer of two times: all matmuls and
  convolutions at the speed of one large matmul; all weights, inputs and outputs at the speed of a copy. *Share* is the
  floor divided by our time.
- *Error* is our difference from the float32 result, divided by eager's difference in the same dtype. The limit is 2,
  for convolutional networks 4; with `use_fp32_acc=True` (rows *exact*) these, too, stay within 2. `routed` models
  choose experts by their data, so a small difference can change the result, and no error is given.
"""
REAL_COLUMNS = ["model", "dtype", "on", "ours", "best other", "", "ratio", "floor", "share", "error"]
ZOO_HEAD = """
Rows come from several runs; the `note` in [each data file](benchmarks.md#the-data) describes the conditions. A
[report](notes/2026-11-29-models.md) has each model's shapes, number of engines, compilation time, and the reasons of
nodes that run in PyTorch.

## Architectures

For each architecture, a small model with random weights is compiled, run and compared with eager PyTorch (`python -m
benchmarks.zoo`). *One engine* counts the architectures that run completely in one TensorRT engine. Architectures in
*italics* run partly in PyTorch, or one of their tested variants cannot be compiled. Architectures that are ~~struck
through~~ cannot be compiled, mostly because torch.export raises an error. Some models have data-dependent branches and
need `decisions="example"` ([list](notes/2026-11-29-branches.md)).
"""
MODELS_COLUMNS = ["kind", "agree with eager", "one engine", "refused", "architectures", "data"]
GPUS_HEAD = """
## On GPUs

The small models of *Architectures* are moved to a GPU, compiled and compared with eager PyTorch there
(`tests/gpu/test_zoo_gpu.py`). The column *not right* of the table uses these words:

- *rounding*: results differ only in elements that depend on how matmuls are rounded, such as a near tie of `argmax`;
- *healed*: some nodes were wrong, and agree after `verify(on_failure="heal")` has compiled them in another way;
- *torch.export differs*: the program agrees with the graph that torch.export captured, but this graph differs from the
  model;
- *refused*: capture raises an error; *not run by eager*: eager PyTorch raises an error.
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
    untimed, unable = "*Error* of models whose times were not compared", "Failed, as model (method)"
    for said, names in ((untimed, right), (unable, failed)):
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
    lines = table(["on", "float32 matmuls in", "right", "not right", "data"], gpus)
    real = [row for data in found for row in _real(data)]
    of_real = [data for data in found if "real" in data]
    notes = [text for data in of_real for text in _untimed(data)]
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
