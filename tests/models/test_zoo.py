"""The quickest architectures of the zoo are one engine each, no worse than eager; what the zoo says of others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attrs import evolve
from torch.export import Dim

from benchmarks import zoo, zoo_tables
from benchmarks.architectures import SIZES, Architecture, Made

QUICK = {
    ("encoder", "albert"),
    ("encoder", "deberta-v2"),
    ("encoder", "electra"),
    ("encoder", "fnet"),
    ("encoder", "nomic_bert"),
    ("decoder", "bloom"),
    ("decoder", "codegen"),
    ("decoder", "gpt_bigcode"),
    ("decoder", "opt"),
    ("decode step", "gpt2"),
}


@pytest.mark.parametrize(
    "architecture",
    [each for each in zoo.architectures("text") if (each.task, each.name) in QUICK],
    ids=lambda each: f"{each.task}-{each.name}".replace(" ", "-"),
)
def test_one_engine(architecture: Architecture) -> None:
    row = zoo.row(evolve(architecture, sizes=SIZES[1:2]))
    assert row.get("engines") == 1 and row["fallbacks"] == [] and "wrong" not in row, row
    assert row["sizes"] == 2


class Toy(torch.nn.Module):
    """A product of a matrix with itself, or something else that its kind says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "branches" and x.sum() > 0:
            return x[0]
        return x.mode(-1).values if self.kind == "mode" else x @ x.mT + x.shape[1]


def toy(kind: str) -> Architecture:
    """A toy with a batch that varies."""

    def make() -> Made:
        dims = {0: Dim("batch", min=1, max=4), 1: Dim("sequence", min=3, max=32)}
        return Toy(kind), {"x": torch.randn(2, 3, 4)}, {"x": dims}

    return Architecture(kind, "toy", make, dtypes=("float32",))


def test_a_row_says_what_runs_where() -> None:
    row = zoo.row(toy("mode"))
    assert row["engines"] == 0 and "counts equal elements" in row["fallbacks"][0]["reason"]
    assert row["dynamic"] == ["batch", "sequence"] and row["sizes"] == 4
    assert "`aten.mode.default`: aten.mode.default runs in PyTorch: TensorRT has no layer" in zoo_tables.part(
        page_of(row)
    )


def test_a_row_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = zoo.row(toy("branches"))
    assert "data-dependent" in refused["refused"]
    monkeypatch.setattr(zoo.pipeline, "default", lambda: 1 / 0)
    failed = zoo.row(toy("plain"))
    assert failed["failed"] == "ZeroDivisionError: division by zero"
    text = zoo_tables.part(page_of(refused, failed))
    assert (
        "`branches`, toy: " in text and "`plain`, toy: ZeroDivisionError" in text and "Of 2 models, 0 compile" in text
    )


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "forward", lambda self, x: x * (1.0 if torch.compiler.is_exporting() else 2.0))
    row = zoo.row(toy("plain"))
    assert "elements are wrong, the first at [0, 0, 0]" in row["wrong"] and row["error"] > 0.1


def page_of(*rows: dict[str, Any]) -> dict[str, Any]:
    """Results with these rows."""
    return {"table": "toys", "date": "today", "versions": {"torch": "2"}, "zoo": list(rows)}


def test_a_result_that_is_no_number_is_as_wrong_as_can_be() -> None:
    exact = torch.tensor([1.0, math.nan, math.inf, 2.0])
    [(ours, theirs)] = zoo._errors(torch.tensor([1.0, math.nan, math.nan, 2.0]), exact.clone(), exact.double())
    assert (ours, theirs) == (math.inf, 0.0)
