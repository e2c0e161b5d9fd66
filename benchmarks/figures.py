"""What the plots of docs/plots show, made from benchmarks/results: records, which need no library to be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen

from benchmarks.environment import RESULTS
from benchmarks.markdown import where
from benchmarks.partitions import NODES, TARGETS
from benchmarks.targets import COMPILING, HOST_US, Row, alone, groups, in_order, named


@frozen
class Panel:
    """One scale with a dot for each label of its plot; a word stands where there is no number."""

    title: str
    axis: str
    values: tuple[float | str, ...]
    limit: float | None = None


@frozen
class Dots:
    """Panels side by side, with a row for each label; ``says`` is what the line in a panel is."""

    name: str
    title: str
    labels: tuple[str, ...]
    panels: tuple[Panel, ...]
    says: str
    where: str


@frozen
class Lines:
    """Points (x, y) by label, joined by lines, and a limit below which they should stay; ``says`` is what that is."""

    name: str
    title: str
    axes: tuple[str, str]
    series: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    limit: float
    says: str
    where: str


Plot: TypeAlias = Dots | Lines


def read(results: Path = RESULTS) -> list[dict[str, Any]]:
    """What was measured, each with the name of its file."""
    paths = sorted(results.glob("*.json"))
    return [{**json.loads(path.read_text(encoding="utf-8")), "name": path.stem} for path in paths]


def earlier(data: dict[str, Any]) -> bool:
    """Whether a result is of before a change, and kept to compare with."""
    return str(data["name"]).endswith("-before")


def everything(results: Path = RESULTS) -> list[Plot]:
    """All of them."""
    return [plot for data in read(results) if not earlier(data) for plot in of(data)]


def of(data: dict[str, Any]) -> list[Plot]:
    """Those of one result; none for a kind that is told by tables only."""
    kinds: dict[str, Callable[[dict[str, Any]], Iterator[Plot]]]
    kinds = {"rows": gpu, "compilations": compilations, "growth": growth, "cutting": cutting}
    return [plot for key, draw in kinds.items() if key in data for plot in draw(data)]


@frozen
class Metric:
    """A number of the rows of ``benchmarks.gpu``, and the limit that a panel shows, which its rows give."""

    field: str
    title: str
    axis: str
    limit: Callable[[dict[str, Row]], float | None]
    says: str


TIME = Metric(
    "gpu_ms",
    "GPU time of a call",
    "ms",
    lambda rows: rows.get("raw engine + graph", {}).get("gpu_ms"),
    "the raw engine with a graph",
)
HOST = Metric("host_us", "Host time of a call", "µs", lambda _: HOST_US, f"{HOST_US} µs, the target with a graph")


def gpu(data: dict[str, Any]) -> Iterator[Dots]:
    """The time on the GPU for every dtype and batch; for the first that of the host."""
    parts: dict[tuple[str, int], dict[str, dict[str, Row]]] = {}
    for (model, dtype, batch), rows in groups(data["rows"]).items():
        if alone(rows):
            parts.setdefault((dtype, batch), {})[model] = rows
    first = [*parts][:1]
    wanted = [*((TIME, part) for part in parts), *((HOST, part) for part in first)]
    for metric, (dtype, batch) in wanted:
        name = f"{data['name']}-{metric.field}-{dtype}-{batch}"
        title = f"{metric.title}, {dtype}, batch {batch}"
        yield _methods(name, title, metric, parts[dtype, batch], where(data))


def _methods(name: str, title: str, metric: Metric, models: dict[str, dict[str, Row]], where: str) -> Dots:
    labels = in_order(m for rows in models.values() for m in rows)
    panels = [
        Panel(model, metric.axis, _values((rows.get(m, {}) for m in labels), metric.field), metric.limit(rows))
        for model, rows in models.items()
    ]
    return Dots(name, title, tuple(labels), tuple(panels), metric.says, where)


def _values(rows: Iterable[Row], field: str) -> tuple[float | str, ...]:
    return tuple("failed" if "failed" in row else _value(row.get(field)) for row in rows)


def _value(number: float | None) -> float | str:
    """The scales are logarithmic: 0 is a word as well."""
    return "" if number is None else number or "0"


def compilations(data: dict[str, Any]) -> Iterator[Dots]:
    """A panel for each model and batch."""
    found = groups(data["compilations"])
    labels = in_order(method for rows in found.values() for method in rows)
    panels = [
        Panel(named(group), "s", _values((rows.get(m, {}) for m in labels), "compile_seconds"), _peer(rows))
        for group, rows in found.items()
    ]
    title, says = "Compile time, without torch.export", f"{COMPILING} times Torch-TensorRT's, the target"
    yield Dots(data["name"], title, tuple(labels), tuple(panels), says, where(data))


def _peer(rows: dict[str, Row]) -> float | None:
    seconds = rows.get("Torch-TensorRT", {}).get("compile_seconds")
    return None if seconds is None else round(COMPILING * seconds, 3)


def growth(data: dict[str, Any]) -> Iterator[Lines]:
    """What an operator costs in chains of several lengths."""
    points = tuple((chain["nodes"], chain["milliseconds_per_node"]) for chain in data["growth"]["chains"])
    times = data["growth"]["target_growth"]
    yield Lines(
        f"{data['name']}-growth",
        "Time of our stages for an operator",
        ("operators of the chain", "ms"),
        (("all stages but build", points),),
        round(times * points[0][1], 4),
        f"the target: {times} times the shortest chain's",
        where(data),
    )


def cutting(data: dict[str, Any]) -> Iterator[Lines]:
    """What an operator costs a partitioner, in programs of several sizes."""
    series = [
        (f"{row['partitioner']}, {row['refused']:.0%} refused", _points(row["seconds"])) for row in data["cutting"]
    ]
    yield Lines(
        f"{data['name']}-cutting",
        "Time to cut a program, for an operator",
        ("operators of the program", "ms"),
        tuple(series),
        1e3 * TARGETS["seconds"] / max(NODES),
        f"the target: {TARGETS['seconds']:g} s for {max(NODES):,} operators",
        where(data),
    )


def _points(seconds: dict[str, float]) -> tuple[tuple[float, float], ...]:
    return tuple((int(nodes), round(1e3 * value / int(nodes), 4)) for nodes, value in seconds.items())


def digest(plot: Plot) -> str:
    """Of everything that a plot shows."""
    return hashlib.sha256(repr(plot).encode()).hexdigest()


def image(plot: Plot, folder: str = "../plots") -> str:
    """The plot in a page: by default of docs/notes."""
    return f"![{plot.title}]({folder}/{plot.name}.svg)\n"
