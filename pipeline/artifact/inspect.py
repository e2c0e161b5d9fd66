"""Describe a saved program without loading it, so that no GPU, operators or weights are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from attrs import field, frozen

from pipeline.artifact.container import MANIFEST, Reader
from pipeline.artifact.manifest import KERNELS, Manifest
from pipeline.artifact.manifest_file import open_program_file, read_manifest
from pipeline.records.wording import format_bytes
from pipeline.shapes.port_text import output_lines


@frozen
class Description:
    """A saved program as text: inputs, outputs, engines, operators in PyTorch, and the versions that wrote the file."""

    path: str
    nbytes: int
    manifest: Manifest = field(repr=False)
    sizes: dict[str, int] = field(repr=False)
    text: str = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(_description_lines(self))


def inspect(path: str | os.PathLike[str]) -> Description:
    """Describe a saved program as text, after checking every byte of the file; raise the same errors as `load`."""
    with open_program_file(Path(path)) as file:
        reader = Reader(file, os.fspath(path))
        manifest = read_manifest(reader)
        for name, digest in manifest.entries.items():
            reader.verify(name, digest)
        sizes = {name: entry.size for name, entry in reader.entries.items()}
        if unlisted := sizes.keys() - {*manifest.entries, MANIFEST}:
            raise reader.damage_error(f"it has the entry {min(unlisted)}, which its manifest does not list")
        large = [*(engine.entry for engine in manifest.engines), *[KERNELS] * bool(manifest.kernels)]
        if lacking := [name for name in large if name not in sizes]:
            raise reader.damage_error(f"the file has no entry {lacking[0]}")
        return Description(os.fspath(path), reader.size, manifest, sizes, reader.manifest.decode())


def _description_lines(description: Description) -> Iterator[str]:
    manifest, versions = description.manifest, description.manifest.versions
    by = f"pipeline {versions.pipeline}, torch {versions.torch}, {versions.tensorrt}"
    yield f"{description.path}: {format_bytes(description.nbytes)}, format {manifest.schema}, written by {by}"
    words = manifest.shapes.words
    yield from (f"input  {port.text(words)}" for port in manifest.inputs)
    ports = (*manifest.inputs, *(port for segment in manifest.segments for port in segment.outputs))
    yield from (f"output {line}" for line in output_lines(manifest.outputs, ports, words))
    yield from (f"size   {row}" for row in manifest.shapes.lines())
    yield from (f"{segment.kind} {segment.name}: {len(segment.nodes)} nodes" for segment in manifest.segments)
    for engine in manifest.engines:
        targets = f", for {', '.join(versions.targets)}" if versions.targets else ""
        refit = ", refittable" * engine.refittable + ", without weights" * engine.stripped
        yield f"engine {engine.name}: {format_bytes(description.sizes[engine.entry])}, {engine.library}{targets}{refit}"
    if manifest.kernels:
        yield f"compiled kernels: {format_bytes(description.sizes[KERNELS])}, for {manifest.kernels}"
    yield _weights_text(description)
    if manifest.computed:
        yield f"constants are computed, the largest has {format_bytes(manifest.computed)}"
    yield (f"a call takes at most {format_bytes(manifest.call)}" if manifest.call else "a call's memory is unbounded")
    yield from (f"in PyTorch: {fallback}" for fallback in manifest.fallbacks)
    yield from (f"needs the library {name}, imported before it is loaded" for name in manifest.libraries)
    if versions.gpu:
        yield f"built beside {versions.gpu}"
    if manifest.agreement is not None:
        yield str(manifest.agreement)


def _weights_text(description: Description) -> str:
    manifest = description.manifest.weights
    inside = format_bytes(description.sizes.get(manifest.entry, 0))
    if manifest.entry and not manifest.others:
        return f"weights: inside, {inside}"
    constants = f"; constants: inside, {inside}" if manifest.entry else ""
    location = f"in {manifest.file}, {format_bytes(manifest.size)}" if manifest.file else "none"
    return f"weights: {location}{constants}"
