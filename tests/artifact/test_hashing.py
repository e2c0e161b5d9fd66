"""Digests beside writing and reading: they are those of the bytes, nothing is hashed or read twice, errors are told."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pipeline
from pipeline.artifact import hashing
from pipeline.artifact.hashing import PIECE, SYNCED, ChecksumWriter, SharedFile

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")
SIZES = (0, 1, 4096, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7)


class Counted:
    """A hash that counts the bytes of all hashes."""

    total = 0

    def __init__(self, data: Any = b"") -> None:
        self.inner = SHA256()
        self.update(data)

    def update(self, data: Any) -> None:
        """The next bytes."""
        Counted.total += memoryview(data).nbytes
        self.inner.update(data)

    def hexdigest(self) -> str:
        """The digest."""
        return str(self.inner.hexdigest())


SHA256 = hashlib.sha256


@given(st.lists(st.sampled_from(SIZES), max_size=4), st.binary(min_size=1, max_size=9))
def test_the_sums_are_those_of_what_is_written(sizes: list[int], seed: bytes) -> None:
    parts = [(seed * (size // len(seed) + 1))[:size] for size in sizes]
    whole, file = b"".join(parts), io.BytesIO()
    with ChecksumWriter(file) as writer:
        found = [writer.write(parts, len(whole)) for _ in range(2)]
    assert file.getvalue() == whole * 2
    assert found == [(hashlib.sha256(whole).hexdigest(), zlib.crc32(whole))] * 2


def test_threads_read_one_file_at_their_own_places() -> None:
    data = os.urandom(5 * PIECE + 3)
    file = SharedFile(io.BytesIO(data))
    ranges = [(i * PIECE // 2, PIECE + i) for i in range(9)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda part: file.sha256(*part), ranges))
    assert found == [hashlib.sha256(data[at : at + size]).hexdigest() for at, size in ranges]
    assert file.read_at(len(data) - 3, 100) == data[-3:]


def test_what_the_disk_cannot_take_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hashing.os, "fdatasync", full)
    with (
        (tmp_path / "f").open("wb") as file,
        pytest.raises(OSError, match="No space left"),
        ChecksumWriter(file) as out,
    ):
        out.write([bytes(SYNCED)], SYNCED)


def test_a_plan_is_hashed_when_it_is_made_and_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)
    compiled = pipeline.default()(nn.Sequential(*layers).eval(), (torch.randn(2, 1024),))
    monkeypatch.setattr(hashlib, "sha256", Counted)
    Counted.total = 0
    compiled.save(tmp_path / "p.trtp")
    size = (tmp_path / "p.trtp").stat().st_size
    plans = sum(engine.nbytes for engine in compiled.engines)
    assert plans > size / 3
    assert Counted.total < size - plans + 2 * PIECE
    Counted.total = 0
    pipeline.load(tmp_path / "p.trtp")
    assert size - PIECE < Counted.total <= size


def test_engines_whose_digest_is_not_told_are_hashed(tmp_path: Path) -> None:
    compiled = pipeline.default()(nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
    for digest in ("", "mine"):
        engines = tuple(attrs.evolve(engine, digest=digest) for engine in compiled.engines)
        attrs.evolve(compiled, engines=engines).save(tmp_path / "p.trtp")
        assert list(map(bytes, pipeline.load(tmp_path / "p.trtp").engines)) == list(map(bytes, compiled.engines))
