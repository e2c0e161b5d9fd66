"""Describe a kept program without loading it: needs no GPU, no operator and no weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from attrs import field, frozen

from pipeline.artifact.container import MANIFEST, Reader
from pipeline.artifact.manifest import Manifest
from pipeline.artifact.manifest_file import manifest_of, opened
from pipeline.compiled import outputs_of
from pipeline.program import in_bytes


@frozen
class Description:
    """A kept program as text: its inputs and outputs, engines, operators in PyTorch, and the versions that wrote it."""

    path: str
    nbytes: int
    manifest: Manifest = field(repr=False)
    sizes: dict[str, int] = field(repr=False)
    text: str = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def inspect(path: str | os.PathLike[str]) -> Description:
    """Describe a kept program, after checking every byte against its digest.

    Raises:
        FileNotFoundError: there is no such file.
        ArtifactError: it is not a kept program, was truncated or altered, or comes from a newer version.
    """
    with opened(Path(path)) as file:
        reader = Reader(file, os.fspath(path))
        manifest = manifest_of(reader)
        for name, digest in manifest.entries.items():
            reader.verify(name, digest)
        sizes = {name: entry.size for name, entry in reader.entries.items()}
        if unlisted := sizes.keys() - {*manifest.entries, MANIFEST}:
            raise reader.broken(f"its manifest does not list the entry {min(unlisted)}")
        if lacking := [engine.entry for engine in manifest.engines if engine.entry not in sizes]:
            raise reader.broken(f"it has no entry {lacking[0]}")
        return Description(os.fspath(path), reader.size, manifest, sizes, reader.manifest.decode())


def _lines(made: Description) -> Iterator[str]:
    kept, versions = made.manifest, made.manifest.versions
    by = f"pipeline {versions.pipeline}, torch {versions.torch}, {versions.tensorrt}"
    yield f"{made.path}: {in_bytes(made.nbytes)}, format {kept.schema}, written by {by}"
    yield from (f"input  {port}" for port in kept.inputs)
    yield from (f"output {line}" for line in outputs_of(kept.inputs, kept.outputs, kept.segments))
    yield from (f"size   {row}" for row in str(kept.shapes).splitlines())
    yield from (f"{segment.kind} {segment.name}: {len(segment.nodes)} nodes" for segment in kept.segments)
    for engine in kept.engines:
        targets = f", for {', '.join(versions.targets)}" if versions.targets else ""
        refit = ", refittable" * engine.refittable + ", without weights" * engine.stripped
        yield f"engine {engine.name}: {in_bytes(made.sizes[engine.entry])}, {engine.library}{targets}{refit}"
    yield _weights(made)
    if kept.computed:
        yield f"constants are computed, the largest has {in_bytes(kept.computed)}"
    yield f"a call takes at most {in_bytes(kept.call)} on the CPU" if kept.call else "what a call takes has no bound"
    yield from (f"in PyTorch: {fallback}" for fallback in kept.fallbacks)
    yield from (f"needs the library {name}, imported before it is loaded" for name in kept.libraries)
    if versions.gpu:
        yield f"built beside {versions.gpu}"
    if kept.agreement is not None:
        yield str(kept.agreement)


def _weights(made: Description) -> str:
    kept = made.manifest.weights
    inside = in_bytes(made.sizes.get(kept.entry, 0))
    if kept.entry and not kept.others:
        return f"weights: inside, {inside}"
    constants = f"; constants: inside, {inside}" if kept.entry else ""
    return (f"weights: in {kept.file}, {in_bytes(kept.size)}" if kept.file else "weights: none") + constants
