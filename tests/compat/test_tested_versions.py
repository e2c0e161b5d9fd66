"""The ranges of versions that pages state are those that are installed here; a user with another is warned once."""

from __future__ import annotations

import warnings
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.records import tested_versions
from pipeline.records.tested_versions import TESTED, warn_untested

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("library", TESTED)
def test_the_installed_release_is_in_the_range_of_its_page(library: str) -> None:
    row = TESTED[library]
    stated = row.first if row.first == row.last else f"{row.first} to {row.last}"
    page = " ".join((DOCS / f"{row.page}.md").read_text(encoding="utf-8").split())
    assert f"{library} {stated}" in page.lower()
    try:
        own = metadata.version(library)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    assert row.has(own), f"{library} {own} is installed: run its tests, then state it in TESTED and docs/{row.page}.md"


@pytest.mark.parametrize(
    ("release", "inside"),
    [("5.17.0", True), ("5.23.9", True), ("5.24.0.dev0", False), ("5.9.1", False), ("4.57.3", False), ("6.0", False)],
)
def test_a_user_is_warned_once(release: str, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    row = tested_versions.Tested("5.17", "5.23", "language-models")
    monkeypatch.setattr(tested_versions, "TESTED", {"transformers": row})
    monkeypatch.setattr(tested_versions, "version", lambda library: release)
    warn_untested.cache_clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_untested("transformers")
        warn_untested("transformers")
    words = (
        f"transformers {release} is installed; 5.17 to 5.23 are tested: compare results (verify=True), or install one"
    )
    assert [str(each.message) for each in found] == [f"{words} of these (docs/language-models.md)"] * (not inside)
    warn_untested.cache_clear()


def test_a_library_that_is_missing_is_no_other_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(library: str) -> str:
        raise metadata.PackageNotFoundError(library)

    monkeypatch.setattr(tested_versions, "version", missing)
    warn_untested.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_untested("torchao")
    warn_untested.cache_clear()
