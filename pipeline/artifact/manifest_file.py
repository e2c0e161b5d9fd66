"""Read the manifest, the description of a saved program. This module imports quickly, for `pipeline inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pipeline.artifact import codec
from pipeline.artifact.consistency import check_manifest
from pipeline.artifact.container import MANIFEST, Reader
from pipeline.artifact.json_data import decode_json
from pipeline.artifact.manifest import FORMAT, SCHEMA, Manifest
from pipeline.errors import ArtifactError


def open_program_file(path: Path) -> BinaryIO:
    """Open a saved program's file. Errors of the system, except for a missing file, become an `ArtifactError`."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read: {error.strerror}", "pass a file that compiled.save(path) wrote"
        ) from None


def read_manifest(reader: Reader) -> Manifest:
    """Read the manifest of an open file; raise an `ArtifactError` if it is malformed or from a newer version."""
    with raise_as_damage(reader, MANIFEST):
        data = decode_json(reader.manifest)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ArtifactError(f"{reader.name} is not a saved program", "pass a file that compiled.save(path) wrote")
    schema = data.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        by = data.get("versions")
        who = f" by pipeline {by['pipeline']}" if isinstance(by, dict) and isinstance(by.get("pipeline"), str) else ""
        why = f"has the file format {str(schema)[:20]}, written{who}; this pipeline reads formats up to {SCHEMA}"
        raise ArtifactError(f"{reader.name} {why}", "update pipeline, or compile and save the model with this version")
    with raise_as_damage(reader, MANIFEST):
        found: Manifest = codec.from_json(data, Manifest)
    try:
        check_manifest(found)
    except ArtifactError as error:
        raise reader.damage_error(error.message) from None
    return found


@contextmanager
def raise_as_damage(reader: Reader, entry_name: str) -> Iterator[None]:
    """Return a context in which an error of an entry's JSON text becomes an error that names the file and the entry."""
    try:
        yield
    except ArtifactError as error:
        raise reader.damage_error(f"entry {entry_name}: {error.message}") from None
    except RecursionError:
        raise reader.damage_error(f"the JSON data of entry {entry_name} is nested too deeply") from None
