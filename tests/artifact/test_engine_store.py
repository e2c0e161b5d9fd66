"""Stores of the engine cache: bounded, shared by processes, and never wrong after damage or a kill."""

from __future__ import annotations

import hashlib
import os
import resource
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.artifact.engine_entry import CorruptEntryError, EngineEntry, pack, unpack
from pipeline.artifact.engine_store import ABANDONED, StoreInMemory
from pipeline.runtime.engine_cache import cache_folder

ROOT = Path(__file__).parents[2]
KEY, OTHER = "a" * 64, "b" * 64


def used(store: pipeline.DiskStore, key: str, at: int) -> None:
    """Has an entry been used at a time."""
    os.utime(store.folder / f"{key}.engine", ns=(at, at))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = pipeline.DiskStore(tmp_path / "engines")
    assert store.load(KEY) is None
    store.save(KEY, b"one")
    store.save(OTHER, b"")
    assert (store.load(KEY), store.load(OTHER)) == (b"one", b"")
    store.save(KEY, b"two")
    assert pipeline.DiskStore(tmp_path / "engines").load(KEY) == b"two"


def test_the_folder_is_the_users_or_the_one_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    assert pipeline.DiskStore().folder == tmp_path / "engines" == cache_folder("engines")
    monkeypatch.delenv("PIPELINE_CACHE")
    assert pipeline.DiskStore().folder.parts[-2:] == ("stagewright", "engines")


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    store = pipeline.DiskStore(tmp_path, size=3 * (100 + 32))
    for i, key in enumerate("abc"):
        store.save(key, bytes(100))
        used(store, key, (i + 1) * 10**9)
    store.load("a")
    store.save("d", bytes(100))
    assert [key for key in "abcd" if store.load(key) is not None] == ["a", "c", "d"]
    store.save("e", bytes(300))
    assert [key for key in "abcde" if store.load(key) is not None] == ["e"]


def test_more_than_the_size_is_not_kept(tmp_path: Path) -> None:
    store = pipeline.DiskStore(tmp_path, size=100)
    with pytest.warns(pipeline.ArtifactWarning, match="is not cached"):
        store.save(KEY, bytes(100))
    assert store.load(KEY) is None


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"x" + d[1:], lambda d: b"", lambda d: d + b"x"])
def test_altered_bytes_are_dropped_with_a_warning(damage: Any, tmp_path: Path) -> None:
    store = pipeline.DiskStore(tmp_path)
    store.save(KEY, b"plan")
    (tmp_path / f"{KEY}.engine").write_bytes(damage((tmp_path / f"{KEY}.engine").read_bytes()))
    with pytest.warns(pipeline.ArtifactWarning, match="was altered; it is deleted"):
        assert store.load(KEY) is None
    assert not list(tmp_path.glob("*.engine"))


def test_keys_stay_in_the_folder(tmp_path: Path) -> None:
    for key in ("../x", "", "a/b", ".x", "a" * 300):
        with pytest.raises(ValueError, match="is not a key"):
            pipeline.DiskStore(tmp_path / "engines").save(key, b"")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = pipeline.DiskStore(tmp_path / "file" / "engines")
    with pytest.warns(pipeline.ArtifactWarning, match="cannot be saved"):
        store.save(KEY, b"plan")
    with pytest.warns(pipeline.ArtifactWarning, match="cannot be read"):
        assert store.load(KEY) is None
    with pytest.warns(pipeline.ArtifactWarning, match="two processes may build"), store.lock_builds([KEY]):
        pass


def test_a_folder_that_is_only_read_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pipeline.DiskStore(tmp_path)
    store.save(KEY, b"plan")
    (tmp_path / f"{OTHER}.engine").write_bytes(b"altered")

    def refused(*args: object, **kwargs: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.load(KEY) == b"plan"
    with pytest.warns(pipeline.ArtifactWarning, match="was altered"):
        assert store.load(OTHER) is None


def _group(path: Path) -> None:
    path.chmod(0o664)


def _linked(path: Path) -> None:
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


def _piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_group, "other users can write"),
        (_linked, "is a symbolic link"),
        (_piped, "is not a regular file"),
        (Path.unlink, ""),
    ],
)
def test_an_entry_that_others_could_write_is_not_read(damage: Any, words: str, tmp_path: Path) -> None:
    store = pipeline.DiskStore(tmp_path)
    store.save(KEY, b"plan")
    assert stat.S_IMODE((tmp_path / f"{KEY}.engine").stat().st_mode) == 0o600
    damage(tmp_path / f"{KEY}.engine")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert store.load(KEY) is None
    assert [words in str(warning.message) for warning in said] == [True] * bool(words)
    store.save(KEY, b"again")
    assert store.load(KEY) == b"again"


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_folder_that_others_could_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pipeline.DiskStore(tmp_path / "engines")
    store.save(KEY, b"plan")
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    store.folder.chmod(0o777)
    with pytest.warns(
        pipeline.ArtifactWarning, match=r"other users can write to .*engines \(mode 777\), .* run chmod go-w"
    ):
        assert store.load(KEY) is None
    with pytest.warns(pipeline.ArtifactWarning, match="cannot be saved to .*other users can write"):
        store.save(OTHER, b"plan")
    store.folder.chmod(0o700)
    with monkeypatch.context() as another:
        another.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr("pipeline.runtime.private.ROOT", None)
        with pytest.warns(pipeline.ArtifactWarning, match="belongs to another user"):
            assert store.load(KEY) is None
    assert store.load(KEY) == b"plan"


def test_a_full_disk_is_told_with_the_place_and_the_size(tmp_path: Path) -> None:
    store, before = pipeline.DiskStore(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.warns(
            pipeline.ArtifactWarning,
            match=rf"cannot be saved to the engine cache {tmp_path}: .*5032 bytes are to be written",
        ):
            store.save(KEY, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.glob("*.engine")) and not list(tmp_path.glob(".*.part"))


def test_what_killed_processes_left_is_deleted(tmp_path: Path) -> None:
    store = pipeline.DiskStore(tmp_path)
    old, new = tmp_path / f".{KEY}.engine.1.part", tmp_path / f".{KEY}.engine.2.part"
    for part in (old, new):
        part.write_bytes(b"half")
    past = time.time() - 2 * ABANDONED
    os.utime(old, (past, past))
    store.save(KEY, b"plan")
    assert (old.exists(), new.exists()) == (False, True)


def test_a_plain_object_is_a_store() -> None:
    class Plain(dict[str, bytes]):
        def load(self, key: str) -> bytes | None:
            return self.get(key)

        def save(self, key: str, data: bytes) -> None:
            self[key] = data

    store = Plain()
    files = StoreInMemory(store)
    assert isinstance(store, pipeline.EngineStore)
    files.write(KEY, [b"a", memoryview(b"bc")])
    file, size = files.open_entry_with_size(KEY) or (None, 0)
    assert file is not None
    assert (file.read(), size, files.open_entry_with_size(OTHER)) == (b"abc", 3, None)
    with pytest.raises(TypeError, match="load"):
        pipeline.cached(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="load"):
        pipeline.cached(Plain)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"pipeline\.default\(\)\.replace"):
        pipeline.cached(store, pipeline.default())


@pytest.mark.parametrize("url", ["memory://engines/one", "file://{}/shared/engines", "local://{}/more"])
def test_a_store_at_a_url(url: str, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store = pipeline.FsspecStore(url.format(tmp_path))
    assert store.load(KEY) is None
    store.save(KEY, b"one")
    store.save(KEY, b"two")
    assert store.load(KEY) == b"two"
    assert pipeline.FsspecStore(url.format(tmp_path)).load(KEY) == b"two"
    assert not list(tmp_path.rglob("*.part"))
    with pytest.raises(ValueError, match="nonsense"):
        pipeline.FsspecStore("nonsense://x")


def entry(plan: bytes) -> bytes:
    """An entry with this plan."""
    return b"".join(pack(EngineEntry(KEY, "tensorrt", hashlib.sha256(plan).hexdigest(), ("x",), (), ()), plan))


def test_every_byte_of_an_entry_counts(tmp_path: Path) -> None:
    whole = entry(b"plan" * 10)
    for at in range(len(whole)):
        made = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        (tmp_path / "e").write_bytes(made)
        with (tmp_path / "e").open("rb") as file, pytest.raises(CorruptEntryError):
            unpack(file, len(made), KEY)
    for at in range(len(whole)):
        (tmp_path / "e").write_bytes(whole[:at])
        with (tmp_path / "e").open("rb") as file, pytest.raises(CorruptEntryError):
            unpack(file, at, KEY)
    (tmp_path / "e").write_bytes(whole)
    with (tmp_path / "e").open("rb") as file:
        assert bytes(unpack(file, len(whole), KEY)[1]) == b"plan" * 10
        with pytest.raises(CorruptEntryError, match="saved under"):
            unpack(file, len(whole), OTHER)


def script(name: str, *args: object) -> str:
    """What a script of this folder says, run in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).parent / name), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550, cwd=ROOT)
    assert not done.returncode, done.stderr
    return done.stdout


def test_a_kill_leaves_no_entry_that_loads_wrongly(tmp_path: Path) -> None:
    """A sample of ``python tests/artifact/killed_caches.py FOLDER 200``."""
    assert "20 kills" in script("killed_caches.py", tmp_path, 20)


def test_processes_lose_nothing_and_build_nothing_twice(tmp_path: Path) -> None:
    """A sample of ``python tests/artifact/shared_caches.py FOLDER 8 500``."""
    assert "2 processes, 12 compilations: 4 engines, none built twice" in script("shared_caches.py", tmp_path, 2, 12)
