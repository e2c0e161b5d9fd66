"""Read a program's `ProgramView` from a saved program, a folder of ``pipeline compile``, a page or JSON.
Convert a ``ProgramView`` to JSON and back."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from pipeline.artifact import codec
from pipeline.artifact.inspect import inspect
from pipeline.artifact.json_data import MalformedError
from pipeline.artifact.load import load_printable_program, raise_as_altered_file
from pipeline.errors import ArtifactError
from pipeline.viewing.collect import view_program
from pipeline.viewing.records import FORMAT, SCHEMA, Change, ProgramView

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def view_to_json(program: ProgramView, changes: Sequence[Change] | None = None) -> str:
    """Convert a program's view to JSON; with ``changes``, include the differences from another program."""
    data: dict[str, object] = {"format": FORMAT, "schema": SCHEMA, "program": codec.to_json(program, ProgramView)}
    if changes is not None:
        data["difference"] = [codec.to_json(change, Change) for change in changes]
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_view(path: Path) -> ProgramView:
    """Read a program's view from a JSON file, or from the HTML page of a program.

    Raises:
        FileNotFoundError: there is no such file.
        ArtifactError: the file is not a view of a program, or has a newer version.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        found = _DATA.search(text)
        if found is None:
            raise ArtifactError(f"{path} is not a program's report", "`pipeline report FILE -o PAGE.html` writes one")
        text = found[1]
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ArtifactError(f"{path} is not JSON: {error}", "`pipeline compile -o DIR` writes a valid file") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not a program's JSON view", "`pipeline compile -o DIR` writes one")
    if data.get("schema") != SCHEMA:
        raise ArtifactError(
            f"{path} has schema {data.get('schema')}, and this version of pipeline reads {SCHEMA}", "compile again"
        )
    try:
        view: ProgramView = codec.from_json(data.get("program"), ProgramView)
    except MalformedError as error:
        raise ArtifactError(f"{path} is damaged: {error}", "`pipeline compile -o DIR` writes a valid file") from None
    return view


PROGRAM = "program.json"
"""The name of the file in which ``pipeline compile`` saves the view of its program."""


def open_view(path: str | os.PathLike[str]) -> ProgramView:
    """Read the view of a program from any of the files in which it can be saved. The view of a saved program has the
    versions that compiled it and the digest of its weights.

    Args:
        path: a file of `Compiled.save`, a folder of ``pipeline compile``, a page (``.html``), or a view as JSON.

    Raises:
        FileNotFoundError: there is no such file.
        ArtifactError: the file is none of these, is damaged, or has a newer version.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / PROGRAM).is_file():
            raise ArtifactError(f"folder {path} has no {PROGRAM}", "`pipeline compile -o DIR` writes it: compile again")
        return read_view(path / PROGRAM)
    if path.suffix in (".json", ".html"):
        return read_view(path)
    manifest = inspect(path).manifest
    versions, weights = manifest.versions, manifest.weights
    with raise_as_altered_file(str(path)):
        found = view_program(load_printable_program(path), path.stem)
    flavour, _, number = versions.tensorrt.partition(" ")
    made = (("pipeline", versions.pipeline), ("torch", versions.torch), (flavour, number))
    return evolve(found, versions=made, weights_digest=weights.sha256 or manifest.entries.get(weights.entry, ""))


def write_view(program: ProgramView, folder: Path) -> None:
    """Save the view of a program as JSON, to the program's folder."""
    (folder / PROGRAM).write_text(view_to_json(program), encoding="utf-8")
