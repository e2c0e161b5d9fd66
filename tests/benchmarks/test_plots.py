"""Plots and tables of what was measured on a GPU say what the files say, whatever part of it is there."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

import benchmarks
from benchmarks import figures, gpu_tables, plots, summaries, tables
from benchmarks.gpu import with_ratios
from benchmarks.targets import TARGETS, Target, groups

LARGEST = 40_000
"""Bytes of an SVG."""

MACHINE: dict[str, Any] = {
    "date": "2026-11-21",
    "versions": {"pipeline": "0.1.0"},
    "machine": {"gpu": "A GPU", "cpu": "A CPU", "cores": 2},
}
TIMES = {
    "pipeline + graph": (1.02, 14.0, 2.5),
    "eager": (9.0, 4000.0, 0.0),
    "torch.compile": (3.0, 1500.0, 10.0),
    "Torch-TensorRT": (1.5, 900.0, 5.0),
    "raw engine": (1.25, 300.0, 2.25),
    "raw engine + graph": (1.0, 8.0, 2.0),
    "pipeline": (1.25, 320.0, 3.5),
}
FAILED = {"failed": "RuntimeError: a | b", "failed_after_seconds": 7.4}


def row(method: str, model: str = "resnet50", batch: int = 1, **fields: Any) -> dict[str, Any]:
    times = dict(zip(("gpu_ms", "host_us", "compile_seconds"), TIMES[method], strict=True))
    found = {"model": model, "dtype": "float16", "batch": batch, "method": method}
    found |= {"relative_error": 1e-3}
    return found | (fields if "failed" in fields else times | fields)


def result(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"name": "gpu-mine", **MACHINE, "rows": with_ratios(list(rows))}


RUN = result(
    *map(row, TIMES), row("raw engine", "vit"), row("pipeline + graph", "vit", **FAILED), row("eager", "vit", 8)
)
COMPILED = {**MACHINE, "name": "gpu-compile-mine", "compilations": [row("eager"), row("pipeline", **FAILED)]}


def test_the_plots_are_current() -> None:
    assert not plots.stale(), "run: python -m benchmarks.plots"
    assert not plots.orphans(), "run: python -m benchmarks.plots"
    assert all(path.stat().st_size < LARGEST for path in plots.FOLDER.glob("*.svg"))


def test_the_page_shows_every_plot_once() -> None:
    shown = re.findall(r"\]\(plots/(.*)\.svg\)", summaries.SPEED.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(plot.name for plot in figures.everything())


def test_methods_are_dots_in_the_order_of_the_methods() -> None:
    time, other, host = figures.of(RUN)
    assert isinstance(time, figures.Dots)
    assert time.labels == ("eager", "torch.compile", "Torch-TensorRT", *[m for m in TIMES if "raw" in m], *OURS)
    assert [panel.title for panel in time.panels] == ["resnet50", "vit"]
    assert time.panels[0].values == (9.0, 3.0, 1.5, 1.25, 1.0, 1.25, 1.02)
    assert time.panels[0].limit == 1.0
    assert time.panels[1].values == ("", "", "", 1.25, "", "", "failed")
    assert time.panels[1].limit is None
    assert (other.name, host.name) == ("gpu-mine-gpu_ms-float16-8", "gpu-mine-host_us-float16-1")
    assert "2026-11-21: A GPU" in time.where


OURS = ("pipeline", "pipeline + graph")


@pytest.mark.parametrize("count", range(len(RUN["rows"]) + 1))
def test_any_part_of_a_run_has_its_page_and_plots(count: int, tmp_path: Path) -> None:
    part = {**RUN, "rows": RUN["rows"][count:]}
    (tmp_path / "gpu-mine.json").write_text(json.dumps(part))
    text = tables.page(tmp_path)
    assert text.count("## On A GPU") == 1
    assert len(re.findall(r"^!\[", text, re.M)) == len(figures.everything(tmp_path)) <= 3


def test_the_summary_has_ours_and_the_best_of_the_others_in_bold() -> None:
    text = gpu_tables.gpu(RUN)
    assert (
        "| resnet50, float16, batch 1 | 9.000 | 3.000 | **1.500** | 1.250 | 1.000 | **1.250** | **1.020** |\n"
        "| vit, float16, batch 1 |  |  |  | 1.250 |  |  | failed |\n"
        "| vit, float16, batch 8 | **9.000** |  |  |  |  |  |  |\n"
    ) in text
    assert "| pipeline + graph | failed after 7 s: RuntimeError: a / b |" in text


@pytest.mark.parametrize(
    ("index", "cells"),
    [
        (0, "| 1.020 to failed | 1 of 2 | **not met** | vit, float16, batch 1: failed |"),
        (1, "| 1.000 | 1 of 1 | met |  |"),
        (
            2,
            "| 14.0 to failed | 1 of 2 | **not met** | "
            "vit, float16, batch 1: failed; vit, float16, batch 8: not measured |",
        ),
        (4, "| 0.833 | 1 of 1 | met |  |"),
    ],
)
def test_targets_are_met_or_not(index: int, cells: str) -> None:
    assert f"| {TARGETS[index].words} {cells}\n" in gpu_tables.gpu(RUN)


def test_a_target_that_nothing_tells_of_is_not_measured() -> None:
    text = gpu_tables.gpu(result(row("eager")))
    assert text.count("|  | 0 of 0 | not measured |  |") == len(TARGETS)


def test_what_was_measured_beside_something_else_is_left_out() -> None:
    """The GPU says 1 ms for what comes out every 2."""
    beside = result(
        *(row(method, calls_per_second=990.0) for method in TIMES),
        *(row(method, "vit", calls_per_second=500.0) for method in TIMES),
    )
    text = gpu_tables.gpu(beside)
    assert "### resnet50" in text and "### vit" not in text
    assert (
        "(calls that were not awaited took more than 1.25 times as long as the GPU reported): vit, float16, batch 1."
        in re.sub(r"\s+", " ", text)
    )
    assert {panel.title for plot in figures.of(beside) for panel in plot.panels} == {"resnet50"}  # type: ignore[union-attr]


def test_what_gives_nan_has_failed() -> None:
    wrong = result(
        *(row(method, relative_error=math.nan) if method == "pipeline + graph" else row(method) for method in TIMES)
    )
    text = gpu_tables.gpu(wrong)
    assert "| pipeline + graph | failed: the result is NaN |" in text
    assert f"| {TARGETS[0].words} | failed | 0 of 1 | **not met** |" in text


def test_a_target_is_for_its_models_and_a_peer_that_failed_is_no_measure() -> None:
    found = groups([row("pipeline"), row("raw engine", failed="x"), row("pipeline", "bert"), row("eager", "bert")])
    assert Target("", 2, ours="pipeline", over="raw engine").measured(found) == {}
    [(group, value)] = Target("", 2, ours="pipeline", over="eager", models=("bert",)).measured(found).items()
    assert group[0] == "bert" and math.isclose(value, 1.25 / 9)


def test_growth_is_milliseconds_of_an_operator() -> None:
    chains = [{"nodes": 10, "milliseconds_per_node": 0.5}, {"nodes": 20, "milliseconds_per_node": 0.6}]
    cut = [{"partitioner": "default", "refused": 0.1, "seconds": {"1000": 0.05, "10000": 0.8}}]
    data = {"name": "n", **MACHINE, "growth": {"chains": chains, "target_growth": 1.5}, "cutting": cut}
    stages, cutting = figures.of(data)
    assert isinstance(stages, figures.Lines) and isinstance(cutting, figures.Lines)
    assert (stages.series, stages.limit) == ((("all stages but build", ((10, 0.5), (20, 0.6))),), 0.75)
    assert (cutting.series, cutting.limit) == ((("default, 10% refused", ((1000, 0.05), (10000, 0.08))),), 0.5)


def test_a_plot_of_other_data_is_stale(tmp_path: Path) -> None:
    folder, results = tmp_path / "plots", tmp_path / "results"
    results.mkdir(), folder.mkdir()
    (results / "gpu-mine.json").write_text(json.dumps(RUN))
    drawn = figures.everything(results)
    for plot in drawn:
        (folder / f"{plot.name}.svg").write_text(f"<svg>{figures.digest(plot)}</svg>")
    assert not plots.stale(folder, results) and not plots.orphans(folder, results)
    (results / "gpu-mine.json").write_text(json.dumps({**RUN, "rows": RUN["rows"][1:-1]}))
    assert [plot.name for plot in plots.stale(folder, results)] == [drawn[0].name, drawn[2].name]
    assert [path.stem for path in plots.orphans(folder, results)] == [drawn[1].name]


def test_that_matplotlib_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gpu-mine.json").write_text(json.dumps(RUN))
    (tmp_path / "old.svg").write_text("<svg/>")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "benchmarks.drawing", raising=False)
    monkeypatch.delattr(benchmarks, "drawing", raising=False)
    assert plots.refresh(folder=tmp_path, results=tmp_path) == 1
    assert "pip install -c constraints.txt -e '.[benchmark]'" in capsys.readouterr().err
    assert not [*tmp_path.glob("*.svg")]


DRAWS = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="drawing takes matplotlib, of the extra benchmark"
)
EXTREMES = figures.Dots(
    "extremes",
    "a < b & c",
    ("eager", "pipeline"),
    tuple(figures.Panel(f"p{i}", "ms", values) for i, values in enumerate([("failed", ""), (1.0, 1.0), (1e-3, 1e6)])),
    "nothing",
    "here",
)


@DRAWS
@pytest.mark.parametrize("plot", [*figures.of(RUN), *figures.of(COMPILED), EXTREMES], ids=lambda plot: plot.name)
def test_drawing_is_small_the_same_every_time_and_text_is_text(plot: figures.Plot, tmp_path: Path) -> None:
    folders = (tmp_path / "a", tmp_path / "b")
    for folder in folders:
        plots.write([plot], folder)
    first, second = ((folder / f"{plot.name}.svg").read_text() for folder in folders)
    assert first == second
    assert len(first) < LARGEST
    assert figures.digest(plot) in first and figures.digest(evolve(plot, title="another")) not in first
    texts = [node.firstChild.data for node in xml.dom.minidom.parseString(first).getElementsByTagName("text")]
    assert {plot.title, plot.where} <= set(texts)
    assert isinstance(plot, figures.Lines) or set(plot.labels) <= set(texts)


@DRAWS
def test_only_what_is_stale_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "gpu-compile-mine"
    (tmp_path / f"{name}.json").write_text(json.dumps(COMPILED))
    for anew, drawn in ((False, 1), (False, 0), (True, 1)):
        assert plots.refresh(anew, tmp_path, tmp_path) == 0
        assert capsys.readouterr().out.count(f"written to {tmp_path / name}.svg") == drawn
