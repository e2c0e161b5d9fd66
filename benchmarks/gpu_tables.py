"""The parts of the report of benchmarks that ``benchmarks.gpu`` and others measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from benchmarks import figures
from benchmarks.markdown import failure, filled, table, where
from benchmarks.targets import ALONE, COMPILED, TARGETS, Group, Row, Target, alone, groups, in_order, named
from benchmarks.turns import LOOP


def gpu(data: dict[str, Any]) -> str:
    """All methods in one table, its plots, the targets, and a table for each model, dtype and batch."""
    everything = groups(data["rows"])
    found = {group: rows for group, rows in everything.items() if alone(rows)}
    shared = "; ".join(named(group) for group in everything if group not in found)
    return "\n".join(
        [
            f"## On {data['machine']['gpu']}\n",
            filled(where(data)),
            *[filled(SHARED.format(times=ALONE, groups=shared))] * bool(shared),
            filled(SUMMARY),
            *_summary(found),
            "",
            *map(figures.image, figures.of(data)),
            "### Targets\n",
            *table(TARGET_HEAD, [_target(target, found) for target in TARGETS]),
            "",
            filled(DETAILS),
            *(line for group, rows in found.items() for line in _details(group, rows)),
        ]
    )


SUMMARY = """Milliseconds on the GPU for a call. Bold: ours, and the fastest other way to run the model. The raw engine
is our engine driven by hand, without a module around it; without a graph ours is faster if TensorRT-RTX launches the
engine as a graph (`engine_graphs`).
"""

SHARED = """Also measured, but left out, since they shared the GPU meanwhile (calls that were not awaited took more
than {times} times as long as the GPU reported): {groups}.
"""

DETAILS = """In the tables below, host µs is the time until a call returns; compile s the time from after
torch.export to the first result, measured once (`benchmarks.gpu_compile` compares it); host MB the peak memory of that;
GPU MB the memory held afterwards; and the error is relative to eager in float32.
"""


def _summary(found: dict[Group, dict[str, Row]]) -> Iterator[str]:
    methods = in_order(method for rows in found.values() for method in rows)
    return table(["model", *methods], [[named(group), *_times(rows, methods)] for group, rows in found.items()])


def _times(rows: dict[str, Row], methods: list[str]) -> list[str]:
    """The times of a group; bold what is ours and the best of the others."""
    times = {method: row["gpu_ms"] for method, row in rows.items() if "gpu_ms" in row}
    ours = [method for method in times if method.startswith("pipeline")]
    others = {method: ms for method, ms in times.items() if method not in ours and not method.startswith("raw")}
    bold = {*ours, *(method for method, ms in others.items() if ms == min(others.values()))}
    return [_time(rows.get(method), f"**{times[method]:.3f}**" if method in bold else "") for method in methods]


def _time(row: Row | None, bold: str) -> str:
    if row is None:
        return ""
    return bold or ("failed" if "failed" in row else _cell("{gpu_ms:.3f}", row))


TARGET_HEAD = ["target", "measured", "met for", "", "missed by"]


def _target(target: Target, found: dict[Group, dict[str, Row]]) -> list[str]:
    """A target, the least and the most that was measured, for how many groups it is met, and which miss it."""
    values = target.measured(found)
    missed = {group: value for group, value in values.items() if not target.met(value)}
    missing = target.missing(found) if values else []
    verdict = "not measured" if not values else "**not met**" if missed else "met where measured" if missing else "met"
    why = [f"{named(group)}: {_measured(value)}" for group, value in missed.items()]
    why += [f"{named(group)}: not measured" for group in missing]
    met = f"{len(values) - len(missed)} of {len(values)}"
    return [target.words, _range(values.values()), met, verdict, "; ".join(why)]


def _range(values: Collection[float]) -> str:
    ends = (min(values), max(values)) if values else ()
    return " to ".join(dict.fromkeys(map(_measured, ends)))


def _measured(value: float) -> str:
    return "failed" if math.isinf(value) else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _details(group: Group, rows: dict[str, Row]) -> list[str]:
    shown = table(list(COLUMNS), [_detail(rows[m]) for m in in_order(rows)])
    return [f"### {named(group)}\n", *_host(rows.values()), *shown, ""]


def _host(rows: Iterable[Row]) -> list[str]:
    """How fast the host was, if that was measured."""
    taken = [row["loop_us"] for row in rows if "loop_us" in row]
    if not taken:
        return []
    median, ends = statistics.median(taken), f"{min(taken):.0f} to {max(taken):.0f}"
    return [filled(f"The host took {median:.0f} µs ({ends}) for a loop of {LOOP} squares in Python, before each turn.")]


COLUMNS = {
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
"""The columns of a model's table, and how a row fills them."""


def _detail(row: Row) -> list[str]:
    if "failed" in row:
        return _failed(row, len(COLUMNS))
    return [_cell(form, row) for form in COLUMNS.values()]


def _failed(row: Row, columns: int) -> list[str]:
    return [row["method"], failure(row), *[""] * (columns - 2)]


def _cell(form: str, row: Row) -> str:
    try:
        return form.format(**{key: value for key, value in row.items() if value is not None})
    except KeyError:
        return ""


COMPILATIONS = """Seconds of everything between torch.export and the first result, in float16: with the kernels that
TensorRT compiles for the GPU, of which ours keeps none from before; Torch-TensorRT has its timing cache, by default.
Each in a process of its own, alone on the machine, that has compiled a layer before; methods in turns. The median, and
the least and the most.
"""


def compilations(data: dict[str, Any]) -> str:
    """How long compiling takes."""
    found = groups(data["compilations"])
    methods = in_order(method for rows in found.values() for method in rows)
    ratios = COMPILED.measured(found)
    lines = [
        [named(group), *(_seconds(rows.get(m)) for m in methods), _measured(ratios[group]) if group in ratios else ""]
        for group, rows in found.items()
    ]
    return "\n".join(
        [
            f"## Compiling on {data['machine']['gpu']}\n",
            filled(where(data)),
            filled(COMPILATIONS),
            *table(["model", *methods, "pipeline over Torch-TensorRT"], lines),
            "",
            *table(TARGET_HEAD, [_target(COMPILED, found)]),
            "",
            *map(figures.image, figures.of(data)),
        ]
    )


def _seconds(row: Row | None) -> str:
    if row is None:
        return ""
    if "failed" in row:
        return failure(row)
    return f"{row['compile_seconds']:.2f} ({min(row['all_seconds']):.2f} to {max(row['all_seconds']):.2f})"


PROFILE = """The kernels of a call in {dtype}, by role, as PyTorch's profiler reports them: microseconds (kernels).
"""


def profile(data: dict[str, Any]) -> str:
    """What the GPU does in a call, for methods side by side, and each one's dearest kernels."""
    rows = data["profile"]
    roles = list(dict.fromkeys(role for row in rows for role in row["roles"]))
    cells = [[*_subject(row), f"{row['gpu_us']:.0f} ({row['kernels']:.0f})", *_roles(row, roles)] for row in rows]
    return "\n".join(
        [
            f"## Kernels on {data['machine']['gpu']}\n",
            filled(where(data)),
            filled(PROFILE.format(**data)),
            *table(["model", "method", "all", *roles], cells),
            "",
            "The most expensive of each:\n",
            *table(["model", "method", "kernel", "µs", "times"], [each for row in rows for each in _dearest(row)]),
            "",
        ]
    )


def _subject(row: Row) -> list[str]:
    return [f"{row['model']}, batch {row['batch']}", row["method"]]


def _roles(row: Row, roles: list[str]) -> list[str]:
    found = row["roles"]
    return [f"{found[role]['us']:.0f} ({found[role]['kernels']:.0f})" if role in found else "" for role in roles]


def _dearest(row: Row, shown: int = 5) -> list[list[str]]:
    return [
        [*_subject(row), f"`{each['kernel'][:60]}`", f"{each['us']:.0f}", f"{each['times']:.0f}"]
        for each in row["dearest"][:shown]
    ]


STARTS = """Seconds to the first result, {dtype}, batch {batch}: from the module, compiled in a process of its own, and
from the saved file in another, whose cache is empty (`python -m benchmarks.gpu_start`). *From the file* is what is
ours: importing pipeline, loading, and the first call; importing torch (and transformers for language models) and
starting CUDA stand beside it. Models compiled at once: {side_by_side}.
"""
STARTING: Final = {"vit-large": 1.5, "llama-8b": 5.0}
"""Seconds that a start from a file may take."""


def starts(data: dict[str, Any]) -> str:
    """A program's first result, from the module and from its file."""
    kinds = ("model_seconds", "result_seconds", "import_seconds", "load_seconds", "call_seconds")
    kinds += ("torch_seconds", "cuda_seconds")
    head = ["model", "from the module", "from the file", "of it importing", "loading", "the call"]
    head += ["beside it torch", "CUDA", "target", "file, MB"]
    rows = [
        [row["model"], *(f"{row[kind]:.2f}" for kind in kinds), *_starting(row), f"{row['file_mb']:,}"]
        for row in data["starts"]
    ]
    lines = [filled(where(data)), filled(STARTS.format(**data)), *table(head, rows), ""]
    return "\n".join([f"## Starting on {data['machine']['gpu']}\n", *lines])


def _starting(row: Row) -> list[str]:
    most = STARTING.get(row["model"])
    return ["" if most is None else f"{most}: {'met' if row['result_seconds'] <= most else '**not met**'}"]


PROFILES = """BERT and ViT in float16 with CUDA graphs: milliseconds on the GPU for each shape (and in multiples of an
engine for that shape alone), and the megabytes of all plans. A range ends with its shape. The target for three narrow
profiles is 1.1. "lazy": TensorRT-RTX compiles kernels for the sizes at hand, which is not the default.
"""


def profiles(data: dict[str, Any]) -> str:
    """One engine with three profiles, beside engines of one shape each."""
    models = dict.fromkeys(row["model"] for row in data["profiles"])
    parts = (_profiles(model, [row for row in data["profiles"] if row["model"] == model]) for model in models)
    head = [f"## Profiles on {data['machine']['gpu']}\n", filled(where(data)), filled(PROFILES)]
    return "\n".join([*head, *(line for part in parts for line in part)])


def _profiles(model: str, rows: list[Row]) -> list[str]:
    ran = [row for row in rows if "failed" not in row]
    shapes = list(ran[0]["times"]) if ran else []
    own = next((row["times"] for row in ran if row["way"] == "an engine each"), {})
    cells = [
        [row["way"], *(_beside(row["times"], own, name) for name in shapes), f"{row['plan_mb']:.0f}"] for row in ran
    ]
    cells += [[row["way"], failure(row), *[""] * len(shapes)] for row in rows if "failed" in row]
    return [f"### {model}\n", *table(["way", *shapes, "plans, MB"], cells), ""]


def _beside(times: Row, own: Row, name: str) -> str:
    over = f" ({times[name]['gpu_ms'] / own[name]['gpu_ms']:.2f})" if name in own else ""
    return f"{times[name]['gpu_ms']:.3f}{over}"


LAYERS = """`compiled.profile()` of models in {dtype}, compiled for their batch, in milliseconds: a whole call, one with
CUDA graphs, the engine by itself, and the sum of its layers. Where CUPTI timed the kernels it adds little to them;
TensorRT's profiler adds some microseconds to each. Between kernels none runs.
"""


def layers(data: dict[str, Any]) -> str:
    """How near the layers' sum of a profile is to the engine's time."""
    rows = [
        [
            *(r["model"], str(r["batch"])),
            *(f"{r[kind]:.3f}" for kind in ("call_ms", "graph_ms", "engine_ms", "layers_ms")),
            *(f"{r['layers_ms'] / r['engine_ms']:.2f}", f"{r['between_ms']:.3f}", ", ".join(r["timed"])),
        ]
        for r in data["layers"]
    ]
    head = [
        "model",
        "batch",
        "call",
        "with graphs",
        "engine",
        "its layers",
        "of the engine",
        "between kernels",
        "timed by",
    ]
    return "\n".join(
        [
            f"## Profiles on {data['machine']['gpu']}\n",
            filled(where(data)),
            filled(LAYERS.format(**data)),
            *table(head, rows),
            "",
        ]
    )
