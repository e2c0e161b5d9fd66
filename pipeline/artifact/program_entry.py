"""Entries of whole compilations in an engine cache: a kept program with the keys of its engines instead of the engines,
and without the captured program's own tensors."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, BinaryIO

import torch
from attrs import evolve

from pipeline.artifact import codec
from pipeline.artifact.container import Writer
from pipeline.artifact.json_data import encoded
from pipeline.artifact.load import Loader, engine_of
from pipeline.artifact.manifest import KeptWeights, Manifest
from pipeline.artifact.save import SOURCE, WEIGHTS, described
from pipeline.artifact.tensors import Kept, Source, Tensors
from pipeline.compiled import Compiled
from pipeline.errors import ArtifactError
from pipeline.frozen import FrozenDict
from pipeline.network.engine import Engine
from pipeline.program import Program
from pipeline.runtime.opened_file import OpenedFile
from pipeline.stages.decompose import source_of

GIVEN = "captured "
"""What begins the keys of tensors that the captured program has."""


def entry_of(compiled: Compiled, captured: Program) -> bytes:
    """The entry of a compilation whose engines are in the cache.

    Raises:
        ArtifactError: something of the program cannot be kept, or an engine is not in the cache.
    """
    tensors = Tensors()
    for name, tensor in captured.parameters.items():
        tensors.leave_out(f"{GIVEN}{name}", tensor)
    made, entries = described(compiled, tensors)
    if any(key.startswith(GIVEN) for key in tensors.by_key) or not all(engine.key for engine in compiled.engines):
        raise ArtifactError("an engine is not in the cache, or a tensor has a name of another's")
    file, header = io.BytesIO(), tensors.header()
    with Writer(file) as writer:
        for name, (parts, size, digest) in entries.items():
            if not name.endswith(".plan") and name != SOURCE:
                writer.add(name, parts, size, digest)
        stored = KeptWeights()
        if tensors.by_key:
            stored = KeptWeights(entry=WEIGHTS)
            writer.add(WEIGHTS, [header, *tensors.parts()], len(header) + tensors.nbytes)
        manifest: Manifest = made(stored, FrozenDict(writer.digests))
        rows = zip(manifest.engines, compiled.engines, strict=True)
        engines = tuple(evolve(kept, entry=engine.key) for kept, engine in rows)
        manifest = evolve(manifest, engines=engines, source="")
        writer.finish(encoded(codec.written(manifest, Manifest)))
    return file.getvalue()


class EntryLoader(Loader):
    """Makes the program of an entry, with engines from the cache and tensors from the captured program."""

    def __init__(self, data: bytes, key: str, captured: Program, plan: Callable[[str, str], Any], threads: Executor):
        self.captured, self.plan = captured, plan
        super().__init__(io.BytesIO(data), Path(key), threads)

    def long(self) -> list[str]:
        """The tensors of the entry; the engine cache checks the plans."""
        return [*filter(None, [self.manifest.weights.entry])]

    def watched(self, file: BinaryIO, digests: Mapping[str, str]) -> tuple[OpenedFile, ...]:
        """None: the entry is in memory."""
        return ()

    def tensors(self) -> Callable[[Kept], torch.Tensor]:
        """The sources of tensors: the captured program and the entry."""
        known, own = self.captured.parameters, Source()
        if name := self.manifest.weights.entry:
            entry = self.verified[name].result()
            own = Source.of(bytearray(self.reader.at(entry.data, entry.size)))

        def tensor(kept: Kept) -> torch.Tensor:
            if not kept.key.startswith(GIVEN):
                return own(kept)
            found = known.get(kept.key.removeprefix(GIVEN))
            if found is None or found.dtype != kept.dtype or tuple(found.shape) != kept.shape:
                raise ArtifactError(f"tensor {kept.key} is not there as it was")
            return found

        return tensor

    def engines(self) -> tuple[Engine, ...]:
        """The engines of the cache."""
        rows = ((kept, self.plan(kept.entry, kept.digest)) for kept in self.manifest.engines)
        return tuple(evolve(engine_of(kept, plan), key=kept.entry) for kept, plan in rows)

    def program(self) -> Program:
        """The program, with the captured one's source, structures, examples and origin."""
        made, given = super().program(), self.captured
        return evolve(
            made,
            in_spec=given.in_spec,
            out_spec=given.out_spec,
            examples=given.examples,
            source=source_of(given),
            origin=given.origin,
        )
