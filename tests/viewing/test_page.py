"""The page of a program: one file, which asks nothing of a network, and whose text cannot become code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from attrs import evolve

import pipeline
from pipeline.viewing.collect import view_program
from pipeline.viewing.page import LIBRARIES, read_asset, render_page
from pipeline.viewing.records import Change, NodeView, ProgramView, Row
from tests.viewing.models import fallbacks

ASSETS = Path(pipeline.__file__).parent / "viewing" / "assets"


def data(html: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found is not None
    read: dict[str, object] = json.loads(found[1])
    return read


def test_report_writes_the_page(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    text = fallbacks().report(html=file, title="Ten")
    assert text == fallbacks().report()
    html = file.read_text(encoding="utf-8")
    assert "<title>Ten – pipeline</title>" in html
    program = data(html)["program"]
    assert isinstance(program, dict)
    assert len(program["nodes"]) == len(view_program(fallbacks()).nodes)
    sized = json.dumps([program[part] for part in ("inputs", "outputs", "sizes", "segments", "cuts")])
    assert "x.shape[0]=1..4..9" in sized and not re.search(r"\bs\d+\b", sized + text)  # the model's names for sizes
    with pytest.raises(FileNotFoundError):
        fallbacks().report(html=tmp_path / "none" / "report.html")


def test_it_needs_no_network() -> None:
    html = render_page(view_program(fallbacks()))
    assert "default-src 'none'" in html
    assert not re.findall(
        r"""(?:src|href)\s*=\s*["'](?!data:)[^"'>]*["']""", re.sub(r"<script>.*?</script>", "", html, flags=re.S)
    )
    own = "".join(read_asset(name) for name in ("page.css", "page.html"))
    assert not re.findall(r"https?://|@import|url\((?!#)", own)
    assert html.count("<script") == html.count("</script>")


def test_text_of_a_program_stays_text() -> None:
    hostile = "</script><script>alert(1)</script><!--"
    program = ProgramView(hostile, (NodeView(hostile, "operator", hostile, where=hostile),))
    html = render_page(program, (Change(hostile, (Row(hostile),)),))
    assert "<script>alert" not in html
    assert data(html)["program"]["title"] == hostile  # type: ignore[index]
    assert "innerHTML" not in "".join(path.read_text() for path in ASSETS.glob("*.js") if path.name not in LIBRARIES)


def test_licences_stand_beside_the_libraries_and_in_the_page() -> None:
    html = render_page(view_program(fallbacks()))
    for library in LIBRARIES:
        licence = (ASSETS / library.replace("min.js", "LICENSE.txt")).read_text(encoding="utf-8")
        assert "Copyright" in licence
        assert licence.strip() in html


def test_the_difference_is_in_the_data() -> None:
    program = evolve(view_program(fallbacks()), stages=())
    assert "difference" not in data(render_page(program))
    assert data(render_page(program, ()))["difference"] == []
    assert data(render_page(program, (Change("sizes", (Row("a: 1 -> 2"),)),)))["difference"] == [
        {"title": "sizes", "rows": [{"text": "a: 1 -> 2"}]}
    ]


def test_infinite_errors_are_json() -> None:
    from pipeline.records.agreement import Agreement, OutputAgreement

    wrong = Agreement((OutputAgreement("y", "optimal", float("inf")),), "reference")
    assert data(render_page(evolve(view_program(fallbacks()), agreement=wrong)))


def test_the_wheel_has_the_assets() -> None:
    import tomllib

    project = tomllib.loads((ASSETS.parents[2] / "pyproject.toml").read_text())
    assert "viewing/assets/*" in project["tool"]["setuptools"]["package-data"]["pipeline"]
