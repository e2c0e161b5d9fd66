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
    "Numbers",
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


PROGRAMS = (
    "index",
    "deploy",
    "serving",
    "keeping",
    "language-models",
    "quantization",
    "verification",
    "converters",
    "stages",
    "reports",
    "profiling",
    "versions",
    "migrating",
)
OLDER = ("keeping",)
"""Pages that say what they are for in words of their own."""


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_page_begins_with_what_its_reader_can_do_after_it(page: str) -> None:
    """First a sentence, then a program, which runs as a test (test_examples.py); sections come after that."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert page in OLDER or "After this page" in text.split("\n\n")[1]
    first = [text.find("```python"), text.find("\n## ")]
    assert first[0] > 0
    assert first[1] < 0 or first[0] < first[1]


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
