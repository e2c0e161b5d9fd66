"""Read the manifest, the description of a saved program. This module imports quickly, for `pipeline inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, TypeVar

from pipeline.artifact import codec
from pipeline.artifact.consistency import check_manifest
from pipeline.artifact.container import Reader
from pipeline.artifact.json_data import decode_json
from pipeline.artifact.manifest import FORMAT, SCHEMA, Manifest
from pipeline.errors import ArtifactError

T = TypeVar("T")


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
    data = decode_entry(reader, reader.manifest, "manifest.json")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ArtifactError(f"{reader.name} is not a saved program", "pass a file that compiled.save(path) wrote")
    schema = data.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        by = data.get("versions")
        who = f" by pipeline {by['pipeline']}" if isinstance(by, dict) and isinstance(by.get("pipeline"), str) else ""
        why = f"has the file format {str(schema)[:20]}, written{who}; this pipeline reads formats up to {SCHEMA}"
        raise ArtifactError(f"{reader.name} {why}", "update pipeline, or compile and save the model with this version")
    found = read_record(reader, data, Manifest, "manifest.json")
    try:
        check_manifest(found)
    except ArtifactError as error:
        raise reader.damage_error(error.message) from None
    return found


def decode_entry(reader: Reader, data: bytes, entry_name: str) -> object:
    """Decode ``data``, the JSON text of the file's entry ``entry_name``; an error names the file and the entry."""
    try:
        return decode_json(data)
    except ArtifactError as error:
        raise reader.damage_error(f"entry {entry_name}: {error.message}") from None


def read_record(reader: Reader, data: object, record_type: type[T], entry_name: str) -> T:
    """Convert ``data``, the decoded JSON of the file's entry ``entry_name``, to a record; an error names the entry."""
    try:
        found: T = codec.from_json(data, record_type)
        return found
    except ArtifactError as error:
        raise reader.damage_error(f"entry {entry_name}: {error.message}") from None
    except RecursionError:
        raise reader.damage_error(f"the JSON data of entry {entry_name} is nested too deeply") from None
