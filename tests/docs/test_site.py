"""The documentation as a site: it builds without a warning, has a page for every job, and every public name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline

ROOT = Path(__file__).parents[2]
JOBS = (
    "Start",
    "Deploy",
    "Serve",
    "Keep",
    "Run a language model",
    "Quantize",
    "Write a converter",
    "Write a stage",
    "Find a wrong result",
    "Choose a TensorRT version",
    "Coming from Torch-TensorRT",
    "How it works",
    "Facts",
    "API reference",
)

needs_mkdocs = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings")),
    reason="needs mkdocs-material and mkdocstrings: pip install '.[docs]'",
)


def entries(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """Titles and pages of the navigation, at any depth."""
    for entry in nav:
        [(title, target)] = entry.items()
        if isinstance(target, list):
            yield title, ""
            yield from entries(target)
        else:
            yield title, target


@pytest.fixture(scope="module")
def nav() -> list[tuple[str, str]]:
    yaml = pytest.importorskip("yaml")
    return list(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))


def test_there_is_a_page_for_every_job(nav: list[tuple[str, str]]) -> None:
    titles = [title for title, _ in nav]
    assert not [job for job in JOBS if not any(title.startswith(job) for title in titles)]


def test_pages_that_the_navigation_does_not_name_are_put_at_its_end(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / ".ci" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    for name in ("index", "new"):
        (tmp_path / f"{name}.md").write_text(f"# The page {name}\n")
    config = {"docs_dir": str(tmp_path), "nav": [{"Start": "index.md"}, {"How to": [{"Gone": "gone.md"}]}]}
    assert hooks.on_config(config)["nav"] == [
        {"Start": "index.md"},
        {"How to": []},
        {"More": [{"The page new": "new.md"}]},
    ]


KB = 1024
DATA = ("benchmarks", "models", "operators", "known-issues", "quantization-forms", "torch-tensorrt-names")
"""Pages that are tables: generated, or names by row."""
LIMITS = {"architecture": 8 * KB, "internals": 6 * KB}
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("internals/*.md")])
WRITTEN = [page for page in PAGES if page.stem not in DATA]


def written(page: Path) -> str:
    """The text of a page without its generated tables."""
    return re.sub(r"<!-- begin: .*?<!-- end: [^\n]*\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_a_page_is_short_and_begins_with_what_its_reader_can_do_after_it(page: Path) -> None:
    """How-tos have 5 kB at most, a page of a room 6, the architecture 8."""
    text = written(page)
    assert len(text.encode()) <= LIMITS.get(page.stem, LIMITS.get(page.parent.name, 5 * KB))
    assert text.startswith("# ")
    assert "After this page" in text.split("\n\n")[1]


PROGRAMS = (
    *("index", "deploy", "serving", "keeping", "engine-cache", "parts", "language-models", "multimodal", "decoders"),
    *("quantization", "verification", "converters", "stages", "reports", "profiling", "versions", "migrating"),
    "torchscript",
)


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_how_to_has_its_program_first(page: str) -> None:
    """It runs as a test (test_examples.py); sections come after that."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert 0 < text.find("```python") < text.find("\n## ") % len(text)


def test_all_written_pages_have_at_most_160_kb() -> None:
    assert sum(len(written(page).encode()) for page in WRITTEN) <= 160 * KB


def test_every_page_but_notes_is_in_the_navigation(nav: list[tuple[str, str]]) -> None:
    assert {page for _, page in nav if page} == {page.relative_to(DOCS).as_posix() for page in PAGES}


def test_notes_are_dated() -> None:
    notes = list(DOCS.glob("notes/*"))
    assert notes and all(re.match(r"20\d\d-\d\d-\d\d-[\w-]+\.md$", note.name) for note in notes)


def test_the_changelog_has_one_line_for_each_entry_of_a_release() -> None:
    head, *releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")
    assert head.startswith("# Changelog") and releases
    for release in releases:
        number, _, date = release.partition("\n")[0].partition(" - ")
        assert re.fullmatch(r"\d+\.\d+\.\d+", number) and re.fullmatch(r"20\d\d-\d\d-\d\d|unreleased", date)
        assert (date == "unreleased") == (number > pipeline.__version__), "pipeline/version.py has the last release"
        entries = [line for line in release.splitlines()[1:] if line and not line.startswith("### ")]
        assert not [line for line in entries if not re.match(r"- (Added|Changed|Fixed|Removed):? \S", line)]
        assert len(release.encode()) <= 12 * KB


@needs_mkdocs
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    made = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    reference = (tmp_path / "site" / "reference.html").read_text(encoding="utf-8")
    missing = [n for n in pipeline.__all__ if not n.startswith("__") and f'id="pipeline.{n}"' not in reference]
    assert not missing
    assert "Refit" in reference
    start = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'<(?:script|img)[^>]+src="?https?:', start)
    assert "src=assets/iframe-worker.js" in start.replace('"', "")  # the search of a page that is opened as a file
    assert (tmp_path / "site" / "assets" / "iframe-worker.js").is_file()
