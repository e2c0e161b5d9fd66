"""What the generated pages are written with: paragraphs, tables, pictures, and where something was measured."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any


def filled(paragraph: str) -> str:
    """A paragraph in lines of 120 columns."""
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def table(header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """The lines of a table."""
    for cells in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(cells)} |"


def with_part(text: str, part: str, lines: Iterable[str]) -> str:
    """A page with new lines between ``<!-- begin: PART -->`` and ``<!-- end: PART -->``."""
    begin, end = f"<!-- begin: {part} -->", f"<!-- end: {part} -->"
    before, rest = text.split(begin)
    return "\n".join([before + begin, "", *lines, "", end + rest.split(end)[1]])


def where(data: dict[str, Any]) -> str:
    """When and on what a result was measured, with what is noted beside it."""
    machine, versions = data["machine"], data["versions"]
    note = f" {data['note']}" if data.get("note") else ""
    place = ", ".join(filter(None, [machine["gpu"], f"{machine['cpu']}, {machine['cores']} cores"]))
    found = ", ".join(f"{name} {value}" for name, value in versions.items())
    return f"Measured on {data['date']}: {place}; {found}.{note}"


def failure(row: dict[str, Any]) -> str:
    """Why a row has no numbers, and after how long that was known."""
    after = f" after {row['failed_after_seconds']:.0f} s" if "failed_after_seconds" in row else ""
    return f"failed{after}: {row['failed'].replace('|', '/')}"
