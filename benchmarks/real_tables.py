"""``python -m benchmarks.real_tables FILE.jsonl ...``: save results of ``benchmarks.real`` and ``real_dynamic``, and
their parts of the reports that ``benchmarks.tables --note`` writes.

The lines of the files are put into ``benchmarks/results/real-GPU-LIBRARY.json`` (``sizes-…``), one for each GPU and
version of TensorRT; the newest line of a model and dtype takes the place of others.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.environment import RESULTS
from benchmarks.markdown import filled, table, where
from benchmarks.targets import CHANGING

BY_TORCH = "\\*"
OVER_STATIC = 1.1
"""How many times a static program's time one for sizes that vary may take."""
OURS, EAGER = "pipeline + graph", ("eager + graph", "eager")
Key: TypeAlias = tuple[str, str, bool, str]
HEAD = """## At real size

Models with the shapes of real checkpoints and random weights, on the GPU before they are compiled
(`python -m benchmarks.real`). Layers may be fewer than the checkpoint's, as the first column says; widths, heads,
tokens, resolutions and channels are not.

An error is the L2 norm of an output's difference from the same model in float32 (without TF32), relative to that
output's norm, for the worst output; *eager's* is that of PyTorch in the same dtype, and the *ratio* is ours by eager's:
at most 2, or 4 for networks of convolutions. A model that is *routed* chooses experts or proposals by its data: one
rounding changes a choice, and with it the result, so that its ratio shows little. *Exact* rows are compiled with
`use_fp32_acc=True`; there, networks of convolutions too have a bound of 2. Rows *with torch.compile* are compiled with
the setting `torch_compile`: PyTorch segments run under it, and engines are compared with that.

*Compile* are the seconds from the module to the engines, *capture* and *build* of them, *load* those until the first
result afterwards, and *torch.compile* those until its first result; several models are compiled at once, and seconds of
waiting for a free GPU do not count. Each time is that of a call that is awaited and, after the bar, of one of many that
are not, in ms; *no graph* where eager cannot be recorded in one.
"""
COLUMNS = [
    *("model", "dtype", "error", "eager's", "ratio", "compile, s", "capture", "build", "load", "torch.compile, s"),
    *(
        "ours, ms",
        "eager in a graph",
        "torch.compile",
        "Torch-TensorRT",
        "engines, MB",
        "PyTorch's peak, MB",
        "engines",
        "in PyTorch",
    ),
]


def part(results: Path = RESULTS) -> str:
    """The part of the page; empty without results."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("real-*.json"))]
    return "\n".join([HEAD, *map(_run, found)]) if found else ""


def _run(data: dict[str, Any]) -> str:
    """The table of one GPU and library, with what did not work below it."""
    rows = data["real"]
    shapes = {row["name"]: row.get("shapes", "") for row in rows}
    lines = [
        filled(f"{where(data)} {summary(rows)}"),
        *table(COLUMNS, [_cells(row) for row in rows if "ratio" in row]),
        *_list("In PyTorch, and why", map(_reasons, (row for row in rows if row.get("reasons")))),
        *_list("Failed", map(_failure, (row for row in rows if "failed" in row))),
        *_list("What they are", (f"`{name}`: {said}" for name, said in shapes.items() if said)),
    ]
    return "\n".join([*lines, ""])


def within(row: dict[str, Any]) -> bool:
    """Whether our error is within the row's bound."""
    return "failed" not in row and bool(row["ratio"] <= row["bound"])


def slower(row: dict[str, Any], methods: Sequence[str]) -> bool:
    """Whether one of these methods takes less time than ours, by more than 2 percent, in one of the two measures."""
    times = row.get("ms", {})
    ours, others = times.get(OURS, {}), [times[method] for method in methods if method in times]
    return any(other[measure] * 1.02 < ours[measure] for other in others for measure in ours)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """How many rows are right, and as fast as the others."""
    timed = [row for row in rows if OURS in row.get("ms", {})]
    compiled = sorted({name for row in timed for name in row["ms"] if name.startswith("torch.compile")})
    judged = [row for row in rows if not row.get("routed")]
    return (
        f"Of {len(judged)} rows that are not routed, {sum(map(within, judged))} are within their bound; "
        f"{sum('failed' in row for row in rows)} of all {len(rows)} failed. Of {len(timed)} that are timed, "
        f"{sum(not slower(row, EAGER) for row in timed)} are as fast as eager in both measures, and "
        f"{sum(not slower(row, compiled) for row in timed)} as torch.compile's fastest mode."
    )


def _cells(row: dict[str, Any]) -> list[str]:
    stages, seconds = row.get("stages", {}), row["seconds"]
    compiled = [name for name in row.get("ms", {}) if name.startswith("torch.compile")]
    peer = next((name for name in row.get("ms", {}) if name.startswith("Torch-TensorRT")), "")
    fastest = min(compiled, key=lambda name: row["ms"][name]["gpu_ms"], default="")
    eager = next((name for name in EAGER if name in row.get("ms", {})), "")
    first = min((seconds[name] for name in seconds if name.startswith("torch.compile")), default=None)
    ratio = f"{row['ratio']:.2f}{' routed' * row['routed']}"
    return [
        f"`{row['name']}`",
        _kind(row),
        f"{row['error']:.1e}",
        f"{row['eager_error']:.1e}",
        ratio if within(row) or row["routed"] else f"**{ratio}**",
        *(_number(each) for each in (seconds.get("compile"), stages.get("capture"), stages.get("build"))),
        *(_number(each) for each in (seconds.get("load"), first)),
        *(_times(row, name) for name in (OURS, eager, fastest, peer)),
        *(_number(row.get(name), 0) for name in ("engine_mb", "peak_mb")),
        str(row["engines"]),
        str(row["fallbacks"] or ""),
    ]


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _times(row: dict[str, Any], method: str) -> str:
    """Both measures, and what is unusual: torch.compile's mode, and eager without a graph."""
    if method not in row.get("ms", {}):
        return ""
    found = row["ms"][method]
    mode = {"torch.compile max-autotune": " max-autotune", "eager": " no graph"}.get(method, "")
    return f"{found['gpu_ms']:.3g} / {found['queued_ms']:.3g}{mode}"


def _kind(row: dict[str, Any]) -> str:
    return f"{row['dtype']}{form(row)}"


def form(row: dict[str, Any]) -> str:
    """What a row is compiled with beside the default settings, in words."""
    return " exact" * row.get("exact", False) + " with torch.compile" * bool(row.get("torch_compile"))


def _named(row: dict[str, Any]) -> str:
    return f"`{row['name']}` in {_kind(row)}"


def _reasons(row: dict[str, Any]) -> str:
    each = (f"\n  - {one['nodes']} `{one['target']}`: {one['reason']}" for one in row["reasons"])
    return f"{_named(row)}, {row['fallbacks']} of {row['operators']}:{''.join(each)}"


def _failure(row: dict[str, Any]) -> str:
    return f"{_named(row)}, in {row['failed']['phase']}: {' '.join(row['failed']['error'].split())}"


def _list(head: str, items: Iterator[str]) -> Iterator[str]:
    """A list below a heading, if there is anything to list."""
    lines = [f"- {item}" for item in items]
    yield from ["", f"### {head}\n", *lines] if lines else []


SIZES = r"""Each model is compiled once for a range of sizes, and once for each of five sizes in it, with CUDA graphs
(`python -m benchmarks.real_dynamic`): milliseconds of both on the GPU, and their ratio, at most {most} of which is the
target: {met} of {count} measured sizes have it. A \* marks what the stage `choose` runs in PyTorch. *Error* is the
worst, ours by eager's in the same dtype, both measured against float32; *changing* how much longer an awaited call
takes when the size changes at every call, at most {changing} of which is the target.
"""


def sizes(data: dict[str, Any]) -> str:
    """What sizes that vary cost beside static programs."""
    each = [size for row in data["sizes"] for size in row.get("sizes", []) if "ms" in size]
    met = sum(_over_static(size) <= OVER_STATIC for size in each)
    head = ["model, dtype", "of", *("size: varying, static, ratio",) * 5, "error", "static error", "changing"]
    return "\n".join(
        [
            f"## Sizes that vary, on {data['machine']['gpu']}\n",
            filled(where(data)),
            filled(SIZES.format(most=OVER_STATIC, met=met, count=len(each), changing=CHANGING)),
            *table(head, [_sizes(row) for row in data["sizes"]]),
            *_list("Failed", map(_failure, (row for row in data["sizes"] if "failed" in row))),
            *_list("What they are", (f"`{row['name']}`: {row['shapes']}" for row in data["sizes"])),
            "",
        ]
    )


def _over_static(size: dict[str, Any]) -> float:
    """How many times the static program's time ours takes."""
    return round(size["ms"]["dynamic"]["gpu_ms"] / size["ms"]["static"]["gpu_ms"], 2)


def _sizes(row: dict[str, Any]) -> list[str]:
    found, cells = row.get("sizes", []), [""] * 5
    for place, size in enumerate(each for each in found if "ms" in each):
        times, over = size["ms"], _over_static(size)
        engines = {"dynamic": row["engines"], "static": size["static_engines"]}
        both = (f"{times[name]['gpu_ms']:.3g}{'' if count else BY_TORCH}" for name, count in engines.items())
        cells[place] = f"{size['size']}: {', '.join(both)}, {_at_most(over, OVER_STATIC)}"
    worst = [_number(max((size[name] for size in found), default=None), 2) for name in ("ratio", "static_ratio")]
    changing = _at_most(row["changing"], CHANGING) if "changing" in row else ""
    return [f"`{row['name']}`, {row['dtype']}", row["of"], *cells, *worst, changing]


def _at_most(value: float, most: float) -> str:
    return f"{value:.2f}" if value <= most else f"**{value:.2f}**"


def merge(paths: Sequence[Path], results: Path = RESULTS) -> list[Path]:
    """Put the lines of these files into the results; lines of a process that was ended early say nothing of where."""
    written: list[Path] = []
    lines = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines() if line]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in lines:
        if "environment" in row:
            groups.setdefault(("sizes" if "of" in row else "real", group(row["environment"])), []).append(row)
    for (kind, name), rows in sorted(groups.items()):
        path = results / f"{kind}-{name}.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {kind: []}
        kept = {key(row): row for row in before[kind]}
        kept |= {key(row): {k: v for k, v in row.items() if k != "environment"} for row in rows}
        older = {name: before[name] for name in ("speeds", "note") if name in before}
        found = {**rows[-1]["environment"], **older, kind: [kept[each] for each in sorted(kept)]}
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        written.append(path)
    return written


def key(row: dict[str, Any]) -> Key:
    """What tells a row from others: model, dtype, and its settings: ``use_fp32_acc=True``, and ``torch_compile``."""
    return row["name"], row["dtype"], row.get("exact", False), row.get("torch_compile") or ""


def group(environment: dict[str, Any]) -> str:
    """The GPU and the library."""
    versions = environment["versions"]
    library = next(name for name in ("tensorrt_rtx", "tensorrt") if name in versions)
    gpu = re.sub(r"\W+", "-", (environment["machine"]["gpu"] or "cpu").lower())
    return f"{gpu}-{library}-{versions[library]}"


def main(argv: Sequence[str] | None = None, merge: Callable[[Sequence[Path]], list[Path]] = merge) -> int:
    """Merge the files that are named."""
    for path in merge([Path(each) for each in (sys.argv[1:] if argv is None else argv)]):
        print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
