"""Pages in a real browser: clicked, searched, unfolded and read; nothing in the console, names on what is clicked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from pipeline.records.agreement import Agreement, OutputAgreement
from pipeline.records.profile import LayerTime, NodeTime, Profile, SegmentTime
from pipeline.viewing.collect import view_program
from pipeline.viewing.differences import find_differences
from pipeline.viewing.page import write_page
from tests.viewing.browser import Page, browser, missing, opened
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
    sides = [page.run(f"document.getElementById('{name}').getBoundingClientRect()") for name in ("graph", "legend")]
    assert sides[1]["left"] >= sides[0]["right"] and sides[1]["top"] == sides[0]["top"]  # beside it, over nothing
    assert page.details.count("TensorRT has no layer for it") == 1  # for all ten, which follow it
    assert page.run("document.querySelectorAll('#details .why .link').length") == 10
    assert len([label for label in page.boxes if label.endswith("runs in PyTorch")]) == 10
    assert (
        page.run(
            "[...document.querySelectorAll('#graph .edge text')].filter(t => /^\\d+ B$/.test(t.textContent)).length"
        )
        > 20
    )
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
    page.click("#details tbody .link")  # a segment
    for told in ("engine_0", "An engine", "SHA-256", "engine_0 → torch_1", "relu"):
        assert told in page.details
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
    assert len(nodes) == len(view_program(architecture("resnet50")).operators) + 2
    page.search("layers.1.layer convolution")
    page.press(DOWN, ENTER)
    assert "convolution" in page.details
    for told in ("Its operator", "Source", "Converter", "Gives", "Recipe"):  # of a module that has one operator
        assert told.upper() in page.details.upper()
    page.search("resnet.encoder.stages.0.layers")
    page.press(ENTER)
    assert page.details.upper().count("INSIDE") == 1
    page.click("#details tbody .link")
    assert page.details.startswith("Overview\nresnet.encoder.stages.0.layers.0")
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
    write_page(view_program(fallbacks()), tmp_path / "report.html")
    page = Page(driver, tmp_path / "report.html")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.press("t")
    dark = page.run(ground)
    assert light != dark
    page.click("#theme")
    assert page.run(ground) == light


def test_what_is_called_so_is_found_first(driver: Any, tmp_path: Path) -> None:
    architecture("resnet50").report(html=tmp_path / "report.html")
    page = Page(driver, tmp_path / "report.html")
    assert page.search("relu")[0].startswith("relu\n")
    assert "convolution" in page.search("conv")[0]


def test_errors_of_verify_and_quantization_are_told(driver: Any, tmp_path: Path) -> None:
    rows = (
        OutputAgreement("output", "optimal", 1e-7, 1e-7, 4e-6),
        OutputAgreement("output", "largest", float("inf"), 1e-7, 4e-6),
    )
    program = view_program(fallbacks())
    fused = ("fused: int8 weight, gemm multiplies int8 by int8", "not fused: int8 activation, the values are rounded")
    nodes = tuple(
        evolve(node, fusion=dict(zip(("relu", "relu_1"), fused, strict=True)).get(node.name, ""))
        for node in program.nodes
    )
    write_page(evolve(program, nodes=nodes, agreement=Agreement(rows, "reference")), tmp_path / "report.html")
    page = Page(driver, tmp_path / "report.html")
    assert "1 of 2 nodes that quantize or dequantize are fused with a product" in page.details
    assert "1.0e-7" in page.details
    assert "∞" in page.details
    assert page.details.count("beyond its bound") == 1
    page.search("output")
    page.press(ENTER)
    assert "ERRORS FROM VERIFY" in page.details.upper()
    page.search("relu_1")
    page.press(ENTER)
    assert fused[1] in page.details
    assert not page.errors


def test_fitting_shows_the_whole_program(driver: Any, tmp_path: Path) -> None:
    fallbacks().report(html=tmp_path / "report.html")
    page = Page(driver, tmp_path / "report.html")
    inside = (
        "(a => b => b.bottom <= a.bottom && b.top >= a.top && b.left >= a.left && b.right <= a.right)"
        "(document.getElementById('graph').getBoundingClientRect())"
    )
    boxes = "[...document.querySelectorAll('#graph .node')].map(n => n.getBoundingClientRect())"
    assert not page.run(f"{boxes}.every({inside})")
    page.click("#fit")
    page.until(f"{boxes}.every({inside})")


def test_differences_and_times_are_shown(driver: Any, tmp_path: Path) -> None:
    program = view_program(fallbacks())
    times = tuple(NodeTime(node.name, 0.01) for node in program.operators)
    layers = (LayerTime("__myl_Relu", 0.4, ("relu",), "plan"), LayerTime("__myl_Move", 0.1))
    segment = SegmentTime("engine_0", "tensorrt", 0.5, layers)
    timed = evolve(program, profile=Profile((segment,), times, 0.6, 0.5, runs=3))
    moved = evolve(
        timed,
        nodes=tuple(evolve(n, place="pytorch", reason="asked for") if n.name == "relu" else n for n in timed.nodes),
    )
    write_page(moved, tmp_path / "report.html", find_differences(timed, moved))
    page = Page(driver, tmp_path / "report.html")
    assert "relu (aten.relu.default): TensorRT -> PyTorch: asked for" in page.details
    assert "TIME ON THE GPU" in page.details.upper()
    assert "of the call, 100.0 % of that with graphs" in page.details
    assert "TensorRT's own, no node's" in page.details
    assert page.run("document.querySelectorAll('#tree .number').length") == 3 * page.run(
        "document.querySelectorAll('#tree .row').length"
    )
    page.click("#unfold")
    assert page.run("document.querySelectorAll('#graph .moved').length") == 1
    page.run("document.getElementById('heat').value = 'time'")
    page.run("document.getElementById('heat').dispatchEvent(new Event('change'))")
    assert "color-mix" in page.run("document.querySelector('#graph .node.tensorrt rect').style.fill")
    assert not page.errors


def test_five_thousand_nodes_open_in_two_seconds(driver: Any, tmp_path: Path) -> None:
    program = large(5000)
    write_page(program, tmp_path / "large.html")
    page, milliseconds = opened(driver, tmp_path / "large.html")
    assert milliseconds < 2000
    assert "4900 / 5000" in page.details
    page.search("node_4321")
    page.press(ENTER)
    assert "model.py:4321" in page.details
    assert any(label.startswith("relu, node node_4321") for label in page.boxes)
    assert not page.errors


def test_one_flat_list_of_five_thousand_opens_as_fast(driver: Any, tmp_path: Path) -> None:
    program = large(5000)
    flat = evolve(program, nodes=tuple(evolve(node, module="") for node in program.nodes))
    write_page(flat, tmp_path / "flat.html")
    page, milliseconds = opened(driver, tmp_path / "flat.html")
    assert milliseconds < 2000
    assert len(page.boxes) < 100
    assert not page.errors
