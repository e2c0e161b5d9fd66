"""Open a program to view: a saved program, a folder of ``pipeline compile``, a page, or a view as JSON."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import evolve

from pipeline.artifact.described import described
from pipeline.artifact.inspect import inspect
from pipeline.artifact.load import fitting
from pipeline.errors import ArtifactError
from pipeline.viewing.collect import view
from pipeline.viewing.json import data_of, read
from pipeline.viewing.records import ProgramView

PROGRAM = "program.json"
"""The file of a folder of ``pipeline compile`` that has the view of its program."""


def opened(path: str | os.PathLike[str]) -> ProgramView:
    """Return the view of a saved program.

    Args:
        path: a file of `Compiled.save`, a folder of ``pipeline compile``, a page (``.html``), or a view as JSON.

    Raises:
        FileNotFoundError: there is no such file.
        ArtifactError: it is none of these, or is damaged, or of a newer version.
    """
    place = Path(path)
    if place.is_dir():
        if not (place / PROGRAM).is_file():
            raise ArtifactError(f"{place} has no {PROGRAM}", "`pipeline compile -o DIR` writes one; compile again")
        return read(place / PROGRAM)
    return read(place) if place.suffix in (".json", ".html") else _saved_view(place)


def _saved_view(path: Path) -> ProgramView:
    """Return the view of a saved program, with the versions that compiled it and the digest of its weights."""
    manifest = inspect(path).manifest
    versions, weights = manifest.versions, manifest.weights
    with fitting(str(path)):
        found = view(described(path), path.stem)
    flavour, _, number = versions.tensorrt.partition(" ")
    made = (("pipeline", versions.pipeline), ("torch", versions.torch), (flavour, number))
    return evolve(found, versions=made, weights_digest=weights.sha256 or manifest.entries.get(weights.entry, ""))


def write_view(program: ProgramView, folder: Path) -> None:
    """Write the view of a program to its folder, as JSON."""
    (folder / PROGRAM).write_text(data_of(program), encoding="utf-8")
