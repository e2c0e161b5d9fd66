"""What is aimed at on a GPU, and whether a run of ``benchmarks.gpu`` met it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import TypeAlias

from attrs import frozen

from benchmarks.environment import Row
from benchmarks.methods import METHODS

HOST_US = 25
"""Microseconds of the host for a call with a graph, of a program with one input and one output."""
COMPILING = 0.6
"""Compile seconds as a multiple of Torch-TensorRT's."""
CHANGING = 1.1
"""A call with a graph when the shape changes at every call, as a multiple of one when it does not."""

ALONE = 1.25
"""How much longer than the GPU says a call may take when none is awaited."""

VIT = ("vit", "timm vit_base_patch16_224")
"""ViT-B/16 as transformers has it, and as timm does."""
ONE_TENSOR = ("resnet50", "convnext", *VIT)
"""Models with one input and one output."""

Group: TypeAlias = tuple[str, str, int]
"""Model, dtype and batch."""


def groups(rows: Iterable[Row]) -> dict[Group, dict[str, Row]]:
    """Rows by method for each model, dtype and batch. What gives NaN has failed, however fast it is."""
    found: dict[Group, dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["model"], row["dtype"], row["batch"]), {})[row["method"]] = _checked(row)
    return found


def _checked(row: Row) -> Row:
    if not math.isnan(row.get("relative_error", 0)):
        return row
    return {key: row[key] for key in ("model", "dtype", "batch", "method")} | {"failed": "the result is NaN"}


def alone(rows: dict[str, Row]) -> bool:
    """Whether a group had the GPU to itself: a graph that is not awaited is launched as often as the GPU can run it."""
    taken = [row for method, row in rows.items() if method.endswith("+ graph") and row.get("calls_per_second")]
    return all(1e3 / row["calls_per_second"] <= ALONE * row["gpu_ms"] for row in taken)


def in_order(methods: Iterable[str]) -> list[str]:
    """Methods as `METHODS` has them, then those it does not know."""
    found = list(dict.fromkeys(methods))
    return [name for name in METHODS if name in found] + [name for name in found if name not in METHODS]


def named(group: Group) -> str:
    """A group in words."""
    model, dtype, batch = group
    return f"{model}, {dtype}, batch {batch}"


@frozen
class Target:
    """A limit of a number of ours, or of its ratio to another method's, for every model or for some of them."""

    says: str
    limit: float
    ours: str = "pipeline + graph"
    over: str = ""
    field: str = "gpu_ms"
    models: tuple[str, ...] = ()
    holds: Callable[[float, float], bool] = operator.le

    @property
    def words(self) -> str:
        """What is aimed at."""
        return self.says.format(limit=self.limit)

    def measured(self, found: dict[Group, dict[str, Row]]) -> dict[Group, float]:
        """For the groups that have what it takes; infinite where ours failed."""
        chosen = {group: rows for group, rows in found.items() if not self.models or group[0] in self.models}
        values = {group: self._value(rows) for group, rows in chosen.items()}
        return {group: value for group, value in values.items() if value is not None}

    def missing(self, found: dict[Group, dict[str, Row]]) -> list[Group]:
        """The groups of its models that do not have what it takes."""
        return [group for group in found if group[0] in self.models and group not in self.measured(found)]

    def _value(self, rows: dict[str, Row]) -> float | None:
        if "failed" in rows.get(self.ours, {}):
            return math.inf
        ours = rows.get(self.ours, {}).get(self.field)
        other = rows.get(self.over, {}).get(self.field) if self.over else 1
        return ours / other if ours is not None and other else None

    def met(self, value: float) -> bool:
        """Whether a group with this number is as it should be."""
        return self.holds(value, self.limit)


TARGETS = (
    Target("With a graph, at most {limit} times the raw engine with one", 1.03, over="raw engine + graph"),
    Target("Without, at most {limit} times the raw engine", 1.05, ours="pipeline", over="raw engine"),
    Target(
        "With a graph, at most {limit} µs of the host, for one input and one output",
        HOST_US,
        field="host_us",
        models=ONE_TENSOR,
    ),
    Target("With a graph, faster than Torch-TensorRT with one", 1, over="Torch-TensorRT + graph", holds=operator.lt),
    Target("Without, faster than Torch-TensorRT", 1, ours="pipeline", over="Torch-TensorRT", holds=operator.lt),
    Target(
        "With a graph, faster than torch.compile reduce-overhead",
        1,
        over="torch.compile reduce-overhead",
        holds=operator.lt,
    ),
)
"""Of the rows of ``benchmarks.gpu``."""

COMPILED = Target(
    "Compiled in at most {limit} times Torch-TensorRT's time",
    COMPILING,
    ours="pipeline",
    over="Torch-TensorRT",
    field="compile_seconds",
)
"""Of those of ``benchmarks.gpu_compile``."""
