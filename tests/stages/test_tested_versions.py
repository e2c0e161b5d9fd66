"""Pages and requirements state the tested versions of other libraries; a user with another is warned once."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from attrs import evolve

import pipeline
from pipeline.records import library_support
from pipeline.records.library_support import TESTED, warn_if_untested
from pipeline.stages import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _again() -> Iterator[None]:
    """Warn again in each test."""
    warn_if_untested.cache_clear()
    yield
    warn_if_untested.cache_clear()


@pytest.mark.parametrize("library", TESTED)
def test_the_installed_release_is_in_the_range_of_its_page(library: str) -> None:
    row = TESTED[library]
    page = " ".join((ROOT / "docs" / f"{row.page}.md").read_text(encoding="utf-8").split())
    assert f"{library} {row}" in page.lower()
    try:
        own = metadata.version(library)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    assert row.includes(own), (
        f"{library} {own} is installed: run its tests, then state it in TESTED and docs/{row.page}.md"
    )


def test_requirements_are_those_of_the_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {TESTED[name].pip_requirement(name) for name in ("tensorrt-rtx", "torch")} <= {*project["dependencies"]}


@pytest.mark.parametrize(
    ("release", "inside"),
    [("5.17.0", True), ("5.23.9", True), ("5.24.0.dev0", False), ("5.9.1", False), ("4.57.3", False), ("6.0", False)],
)
def test_a_user_is_warned_once(release: str, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    row = evolve(TESTED["transformers"], first=(5, 17), last=(5, 23))
    monkeypatch.setattr(library_support, "TESTED", {"transformers": row})
    monkeypatch.setattr(library_support, "version", lambda library: release)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_if_untested("transformers")
        warn_if_untested("transformers")
    message = (
        f"transformers {release} is installed, but only 5.17 to 5.23 are tested (docs/language-models.md): "
        'compare results (verify=True), or pip install "transformers>=5.17,<5.24"'
    )
    assert [str(each.message) for each in found] == [message] * (not inside)


def test_a_compilation_warns_of_an_untested_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    there = evolve(library_support.CAPABILITIES, flavour="tensorrt_rtx", version="1.7.1.116")
    monkeypatch.setattr(library_support, "CAPABILITIES", there)
    settings = pipeline.default(load_built_engines=False).settings
    with pytest.warns(pipeline.VersionWarning, match=r"tensorrt-rtx 1\.7\.1\.116 .* \"tensorrt-rtx>=1\.4,<1\.7\""):
        load.Load().check_ready(settings)


def test_a_library_that_is_missing_is_no_other_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(library: str) -> str:
        raise metadata.PackageNotFoundError(library)

    monkeypatch.setattr(library_support, "version", missing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested("torchao")
