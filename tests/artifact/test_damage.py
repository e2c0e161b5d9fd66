"""A file that is damaged, foreign or newer is one clear error before anything runs; none crashes or fills memory."""

from __future__ import annotations

import json
import random
import resource
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pipeline
from pipeline.artifact import container
from pipeline.artifact.container import MANIFEST
from tests.artifact.damage import BYTES, entries_of, flipped, inserted, removed, rewritten, truncated
from tests.artifact.programs import cases
from tests.artifact.test_files import compiled

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")
MOST = 256 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A program with engines, PyTorch segments, sizes and weights."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("kept") / "p.trtp"
    compiled(cases()["fallback"]).save(path)
    return path.read_bytes()


def memory() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def refuse_bytes(data: bytes, folder: Path, count: int) -> None:
    """Damages bytes so many times; each is an error of ours."""
    chance, before = random.Random(count), memory()
    path = folder / "damaged.trtp"
    for i in range(count):
        damage = BYTES[i % len(BYTES)]
        path.write_bytes(made := damage(data, chance))
        assert made != data
        with pytest.raises(pipeline.ArtifactError) as caught:
            pipeline.load(path)
        assert str(path) in str(caught.value), damage.__name__
    assert memory() - before < MOST


def test_damaged_bytes_are_errors(data: bytes, tmp_path: Path) -> None:
    refuse_bytes(data, tmp_path, 280)


@pytest.mark.slow
def test_damaged_bytes_are_errors_many_times(data: bytes, tmp_path: Path) -> None:
    refuse_bytes(data, tmp_path, 3500)


def damaging(chance: random.Random) -> SimpleNamespace:
    """``zlib`` whose deflated text is damaged, but for some of it."""

    def compressobj(wbits: int) -> SimpleNamespace:
        inner, damage = zlib.compressobj(wbits=wbits), chance.choice([flipped, truncated, removed, inserted, unharmed])
        return SimpleNamespace(compress=lambda data: damage(inner.compress(data) + inner.flush(), chance), flush=bytes)

    return SimpleNamespace(**{**vars(zlib), "compressobj": compressobj})


def unharmed(data: bytes, chance: random.Random) -> bytes:
    """The bytes as they are."""
    return data


def refuse_deflated(data: bytes, folder: Path, count: int, patch: pytest.MonkeyPatch) -> None:
    """Damages deflated text whose digests are right so many times: it is inflated as it was, or an error of ours."""
    chance, before, refused = random.Random(count), memory(), 0
    entries, path = entries_of(data), folder / "damaged.trtp"
    for _ in range(count):
        with patch.context() as damaged:
            damaged.setattr(container, "zlib", damaging(chance))
            path.write_bytes(rewritten(entries, json.loads(entries[MANIFEST])))
        try:
            pipeline.load(path)
        except pipeline.ArtifactError as error:
            refused += str(path) in str(error)
    assert refused > count // 2
    assert memory() - before < MOST


def test_damaged_deflated_text_is_an_error(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_deflated(data, tmp_path, 100, monkeypatch)


@pytest.mark.slow
def test_damaged_deflated_text_is_an_error_many_times(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_deflated(data, tmp_path, 2000, monkeypatch)


def test_every_byte_counts(data: bytes, tmp_path: Path) -> None:
    """Those of the zip's own structure too: times, versions, padding."""
    path = tmp_path / "p.trtp"
    tail = len(data) - data.index(b"PK\x01\x02")
    for at in [*range(60), *range(len(data) - tail, len(data), 7)]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(pipeline.ArtifactError):
            pipeline.load(path)


def test_a_file_that_is_not_there_is_pythons_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pipeline.load(tmp_path / "none.trtp")


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x04pickle", b"PK\x03\x04", b"\x7fELF" * 100])
def test_a_foreign_file_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(pipeline.ArtifactError, match=r"is not a saved program|is truncated or was altered"):
        pipeline.load(tmp_path / "f")
    with pytest.raises(pipeline.ArtifactError, match=r"has no file model\.trtp|cannot be read"):
        pipeline.load(tmp_path)


def test_a_newer_file_is_told(data: bytes, tmp_path: Path) -> None:
    entries = entries_of(data)
    manifest = {**json.loads(entries[MANIFEST]), "schema": 99, "unheard": {}}
    manifest["versions"]["pipeline"] = "9.9"
    (tmp_path / "p.trtp").write_bytes(rewritten(entries, manifest))
    with pytest.raises(pipeline.ArtifactError, match=r"has the file format 99, written by pipeline 9\.9") as caught:
        pipeline.load(tmp_path / "p.trtp")
    assert "update pipeline" in str(caught.value)


class Bomb:
    """Deflates 256 MB of zeros, whatever it is given."""

    def __init__(self, wbits: int) -> None:
        self.inner = zlib.compressobj(9, wbits=wbits)

    def compress(self, data: bytes) -> bytes:
        """The deflated zeros."""
        return b"".join(self.inner.compress(bytes(1 << 20)) for _ in range(256))

    def flush(self) -> bytes:
        """The end."""
        return self.inner.flush()


def test_text_that_is_longer_than_it_says_is_refused(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, path = entries_of(data), tmp_path / "p.trtp"
    monkeypatch.setattr(container, "zlib", SimpleNamespace(**{**vars(zlib), "compressobj": Bomb}))
    path.write_bytes(rewritten(entries, json.loads(entries[MANIFEST])))
    before = memory()
    with pytest.raises(pipeline.ArtifactError, match=r"entry manifest\.json was altered"):
        pipeline.load(path)
    assert memory() - before < 64 << 20


def test_no_more_text_is_deflated_than_a_file_may_have(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, path = entries_of(data), tmp_path / "p.trtp"
    text = sum(len(each) for name, each in entries.items() if name.endswith(".json"))
    monkeypatch.setattr(container, "MOST_TEXT", text // 2)
    path.write_bytes(rewritten(entries, json.loads(entries[MANIFEST])))
    stored = [row.compress_type == zipfile.ZIP_STORED for row in zipfile.ZipFile(path).infolist()]
    assert any(stored) and not all(stored)
    pipeline.load(path)
    path.write_bytes(data)
    monkeypatch.setattr(zlib, "decompressobj", None)
    with pytest.raises(pipeline.ArtifactError, match=f"than a saved program can have, {text // 2}"):
        pipeline.load(path)


def test_other_weights_beside_a_program_are_told(tmp_path: Path) -> None:
    program = compiled(cases()["whole"])
    program.save(tmp_path / "p.trtp", weights=tmp_path / "w")
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes()[:-1] + b"\x55")
    with pytest.raises(pipeline.ArtifactError, match="has other weights than those saved for"):
        pipeline.load(tmp_path / "p.trtp")
