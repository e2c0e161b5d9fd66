"""The table of kernel faults: rows name what exists, hold for the versions that they say, and are on the page."""

from __future__ import annotations

import ast

import pytest

from benchmarks import known_issues
from pipeline.quirks import QUIRKS, Quirk
from tests.test_house import ROOT


def test_each_has_its_own_name() -> None:
    assert len({quirk.id for quirk in QUIRKS}) == len(QUIRKS)


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.id)
def test_what_a_row_names_exists(quirk: Quirk) -> None:
    path, _, function = quirk.test.partition("::")
    defined = {
        node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert not function or function in defined
    assert (ROOT / quirk.evidence).exists()


@pytest.mark.parametrize(
    ("since", "before", "has", "words"),
    [
        (None, None, {"1.4", "1.6"}, "all"),
        ((1, 6), None, {"1.6"}, "1.6 and newer"),
        (None, (1, 6), {"1.4"}, "before 1.6"),
        ((1, 5), (1, 6), set(), "1.5 to before 1.6"),
    ],
)
def test_versions(since: object, before: object, has: set[str], words: str) -> None:
    quirk = Quirk("a", "b", "c", "d", "e", "f", "g", (), since, before)  # type: ignore[arg-type]
    versions = {"1.4": (1, 4, 0, 76), "1.6": (1, 6, 1, 120)}
    assert {name for name, version in versions.items() if quirk.affects("tensorrt_rtx", version)} == has
    assert not any(quirk.affects("tensorrt", version) for version in versions.values())
    assert quirk.versions == words


def test_the_page_is_made_of_the_table() -> None:
    assert known_issues.PAGE.read_text() == known_issues.page(), "run python -m benchmarks.known_issues"
