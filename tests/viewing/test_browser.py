"""Pages in a real browser: clicked, searched, unfolded and read; nothing in the console, names on what is clicked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.profiling.records import NodeTime, Profile, SegmentTime
from pipeline.viewing.collect import view
from pipeline.viewing.differences import differences
from pipeline.viewing.page import write
from tests.viewing.browser import Page, browser, missing
from tests.viewing.models import architecture, fallbacks, large

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}")
ENTER, ESCAPE, DOWN = "\ue007", "\ue00c", "\ue015"


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as made:
        yield made


def test_ten_fallbacks(driver: Any, tmp_path: Path) -> None:
    fallbacks().report(html=tmp_path / "report.html")
    page = Page(driver, tmp_path / "report.html")
    assert "40 / 50" in page.details
    assert page.details.count("TensorRT has no layer for it") == 10
    assert "BYTES OF EACH CUT" in page.details.upper()
    found = page.search("svd_default_7")
    assert len(found) == 1
    assert "_linalg_svd_default_7" in found[0]
    page.press(ENTER)
    assert page.details.startswith("Overview\n_linalg_svd_default_7")
    for told in ("PyTorch", "TensorRT has no layer for it", "models.py:", "=1..4..9", "Read by", "128 B"):
        assert told in page.details
    page.click("#details .link")  # what it reads
    assert "aten.relu.default" in page.details
    assert "pipeline.converters" in page.details or "pipeline.impl" in page.details
    assert "__myl_" in page.details  # the kernel in the plan
    page.press(ESCAPE)
    assert page.details.startswith("Overview\n40 / 50")
    assert not page.nameless
    assert not page.errors


def test_resnet_unfolds_by_mouse_and_keyboard(driver: Any, tmp_path: Path) -> None:
    architecture("resnet50").report(html=tmp_path / "report.html", title="ResNet-50")
    page = Page(driver, tmp_path / "report.html")
    folded = [label for label in page.boxes if label.endswith(", folded")]
    assert folded
    before = len(page.boxes)
    name = folded[0].split(",")[0]
    page.box(name).click()
    assert "OPERATORS" in page.details.upper()
    page.click("#details button:not(.back)")
    assert len(page.boxes) > before
    assert any(label.startswith(name) and label.endswith(", unfolded") for label in page.boxes)
    page.press(" ")  # the box has the focus
    assert len(page.boxes) == before
    page.click("#unfold")
    nodes = [label for label in page.boxes if ", node " in label]
    assert len(nodes) == len(view(architecture("resnet50")).operators) + 2
    page.search("layers.1.layer convolution")
    page.press(DOWN, ENTER)
    assert "convolution" in page.details
    page.click("#details summary")  # a weight
    assert "Recipe" in page.details
    assert not page.nameless
    assert not page.errors


def test_a_decoder_has_sizes_and_a_tree(driver: Any, tmp_path: Path) -> None:
    architecture("llama").report(html=tmp_path / "report.html", title="Llama")
    page = Page(driver, tmp_path / "report.html")
    page.click("#unfold")
    before = len(page.boxes)
    page.click("#sizes")
    assert len(page.boxes) > before
    page.click("#tree li[aria-level='2'] .label")
    assert "model" in page.details
    page.press("\ue014", "\ue015", ENTER)  # right, down
    assert page.run("document.querySelectorAll('#tree [aria-selected=true]').length") == 1
    assert not page.errors


def test_dark_and_light(driver: Any, tmp_path: Path) -> None:
    write(view(fallbacks()), tmp_path / "report.html")
    page = Page(driver, tmp_path / "report.html")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.press("t")
    dark = page.run(ground)
    assert light != dark
    page.click("#theme")
    assert page.run(ground) == light


def test_differences_and_times_are_shown(driver: Any, tmp_path: Path) -> None:
    program = view(fallbacks())
    times = tuple(NodeTime(node.name, 0.01) for node in program.operators)
    from attrs import evolve

    timed = evolve(program, profile=Profile((SegmentTime("engine_0", "tensorrt", 0.5),), times, 0.6, 0.5, runs=3))
    moved = evolve(
        timed,
        nodes=tuple(evolve(n, place="pytorch", reason="asked for") if n.name == "relu" else n for n in timed.nodes),
    )
    write(moved, tmp_path / "report.html", differences(timed, moved))
    page = Page(driver, tmp_path / "report.html")
    assert "relu (aten.relu.default): TensorRT -> PyTorch: asked for" in page.details
    assert "TIME ON THE GPU" in page.details.upper()
    page.click("#unfold")
    assert page.run("document.querySelectorAll('#graph .moved').length") == 1
    page.run("document.getElementById('heat').value = 'time'")
    page.run("document.getElementById('heat').dispatchEvent(new Event('change'))")
    assert "color-mix" in page.run("document.querySelector('#graph .node.tensorrt rect').style.fill")
    assert not page.errors


def test_five_thousand_nodes_open_in_two_seconds(driver: Any, tmp_path: Path) -> None:
    program = large(5000)
    write(program, tmp_path / "large.html")
    start = time.perf_counter()
    page = Page(driver, tmp_path / "large.html")
    seconds = time.perf_counter() - start
    assert page.milliseconds < 2000, seconds
    assert "4900 / 5000" in page.details
    page.search("node_4321")
    page.press(ENTER)
    assert "model.py:4321" in page.details
    assert any(label.startswith("relu, node node_4321") for label in page.boxes)
    assert not page.errors


def test_one_flat_list_of_five_thousand_opens_as_fast(driver: Any, tmp_path: Path) -> None:
    from attrs import evolve

    program = large(5000)
    flat = evolve(program, nodes=tuple(evolve(node, module="") for node in program.nodes))
    write(flat, tmp_path / "flat.html")
    page = Page(driver, tmp_path / "flat.html")
    assert page.milliseconds < 2000
    assert len(page.boxes) < 100
    assert not page.errors
