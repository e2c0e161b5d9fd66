"""Convert a ``ProgramView`` to JSON and back: for the page, and for the folders of ``pipeline compile``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifact import codec
from pipeline.artifact.malformed import MalformedError
from pipeline.errors import ArtifactError
from pipeline.viewing.records import FORMAT, SCHEMA, Change, ProgramView

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def data_of(program: ProgramView, changes: Sequence[Change] | None = None) -> str:
    """Return a view as JSON, with the differences from another if there is one to compare with."""
    data: dict[str, object] = {"format": FORMAT, "schema": SCHEMA, "program": codec.written(program, ProgramView)}
    if changes is not None:
        data["difference"] = [codec.written(change, Change) for change in changes]
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read(path: Path) -> ProgramView:
    """Return the view that a JSON file, or the HTML page of a program, contains.

    Raises:
        FileNotFoundError: there is no such file.
        ArtifactError: it is not a view of a program, or one of a newer version.
    """
    try:
        data = json.loads(_text(path))
    except ValueError as error:
        raise ArtifactError(f"{path} is not JSON: {error}", "`pipeline compile -o DIR` writes one") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not a view of a program", "`pipeline compile -o DIR` writes one")
    if data.get("schema") != SCHEMA:
        raise ArtifactError(f"{path} has the schema {data.get('schema')}; this version reads {SCHEMA}", "compile again")
    return _program(data.get("program"), path)


def _text(path: Path) -> str:
    """Return the JSON text of a file: the whole file, or the data of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".html":
        return text
    found = _DATA.search(text)
    if found is None:
        raise ArtifactError(f"{path} is not a page of a program", "`pipeline report FILE -o PAGE.html` writes one")
    return found[1]


def _program(data: object, path: Path) -> ProgramView:
    try:
        found: ProgramView = codec.read(data, ProgramView)
    except MalformedError as error:
        raise ArtifactError(f"{path}: {error}", "`pipeline compile -o DIR` writes it anew") from None
    return found
