"""Read the manifest of a saved program's file. This module imports quickly, for `pipeline inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, TypeVar

from pipeline.artifact import codec
from pipeline.artifact.consistency import check_manifest
from pipeline.artifact.container import Reader
from pipeline.artifact.json_data import decoded
from pipeline.artifact.manifest import FORMAT, SCHEMA, Manifest
from pipeline.errors import ArtifactError

T = TypeVar("T")


def opened(path: Path) -> BinaryIO:
    """Open the file. Errors of the system, except for a missing file, become an `ArtifactError`."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", "pass the file that save wrote") from None


def manifest_of(reader: Reader) -> Manifest:
    """Read the manifest of an open file; raise an `ArtifactError` if it is malformed or from a newer version."""
    data = json_of(reader, reader.manifest, "manifest.json")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ArtifactError(f"{reader.name} is not a saved program", "compiled.save(path) writes one")
    schema = data.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        by = data.get("versions")
        who = f" by pipeline {by['pipeline']}" if isinstance(by, dict) and isinstance(by.get("pipeline"), str) else ""
        why = f"has the format {str(schema)[:20]}, written{who}; this version reads formats up to {SCHEMA}"
        raise ArtifactError(f"{reader.name} {why}", "update pipeline, or save the program with this version")
    found = read(reader, data, Manifest, "manifest.json")
    try:
        check_manifest(found)
    except ArtifactError as error:
        raise reader.broken(error.message) from None
    return found


def json_of(reader: Reader, data: bytes, name: str) -> object:
    """Decode the JSON of an entry."""
    try:
        return decoded(data)
    except ArtifactError as error:
        raise reader.broken(f"entry {name} {error.message}") from None


def read(reader: Reader, data: object, kind: type[T], name: str) -> T:
    """Read the record of an entry."""
    try:
        found: T = codec.read(data, kind)
        return found
    except ArtifactError as error:
        raise reader.broken(f"entry {name}: {error.message}") from None
    except RecursionError:
        raise reader.broken(f"entry {name} is nested too deeply") from None
