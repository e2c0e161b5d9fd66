"""Compiled kernels on disk: found again, safe under several processes, ignored where they cannot be read."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.network.description import Network
from pipeline.records.kernels import NO_KERNELS, Kernels
from pipeline.runtime import engine_cache
from pipeline.runtime.engine_cache import RuntimeCache, cache_folder

MAGIC = b"kernels:"


class FakeCache:
    """TensorRT's cache: bytes that begin with a magic word."""

    def __init__(self) -> None:
        self.data = MAGIC

    def deserialize(self, data: bytes) -> bool:
        if data.startswith(MAGIC):
            self.data = data
        return data.startswith(MAGIC)

    def serialize(self) -> bytes:
        return self.data


class FakeEngine:
    """An engine that only makes caches."""

    def create_runtime_config(self) -> Any:
        return self

    def create_runtime_cache(self) -> FakeCache:
        return FakeCache()


def attached(path: Path | None) -> RuntimeCache:
    cache = RuntimeCache(path)
    cache.create_once(FakeEngine())
    return cache


def test_what_was_compiled_is_there_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.kernels"
    first = attached(path)
    first.handle.data += b"one"
    assert first.save()
    assert attached(path).handle.data == MAGIC + b"one"
    assert [p.name for p in path.parent.iterdir()] == ["a.kernels"], "nothing half-written stays"


def test_nothing_is_written_without_anything_new(tmp_path: Path) -> None:
    path = tmp_path / "a.kernels"
    first = attached(path)
    first.handle.data += b"one"
    assert first.save() and not first.save()
    assert not attached(path).save()
    first.handle.data += b"two"
    assert first.save()


def test_a_file_that_cannot_be_read_is_ignored_with_a_warning(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "a.kernels"
    path.write_bytes(b"rubbish" + hashlib.sha256(b"rubbish").digest())
    with caplog.at_level(logging.WARNING):
        cache = attached(path)
    assert "a.kernels has no compiled kernels that" in caplog.text
    assert cache.handle.data == MAGIC
    cache.handle.data += b"one"
    assert cache.save()
    assert attached(path).handle.data == MAGIC + b"one"


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_kernels_that_others_could_write_are_not_read(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "a.kernels"
    first = attached(path)
    first.handle.data += b"one"
    assert first.save()
    path.chmod(0o666)
    with caplog.at_level(logging.WARNING):
        assert attached(path).handle.data == MAGIC
    assert "other users can write" in caplog.text
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    with caplog.at_level(logging.WARNING):
        assert attached(path).handle.data == MAGIC
    assert "do not match their checksum" in caplog.text


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two GPUs of one kind; TensorRT reads no kernels of the other. Set ``current``."""

    class Gpus:
        current = 0

        def properties(self, _: object) -> Any:
            return SimpleNamespace(name="Some GPU", major=9, minor=0, uuid=f"GPU-{self.current}")

    found = Gpus()

    def deserialize(cache: FakeCache, data: bytes) -> bool:
        readable = data.startswith(MAGIC) and b"gpu%d" % (1 - found.current) not in data
        cache.data = data if readable else cache.data
        return readable

    monkeypatch.setattr(engine_cache.torch.cuda, "get_device_properties", found.properties)
    monkeypatch.setattr(engine_cache.torch.cuda, "current_device", lambda: found.current)
    monkeypatch.setattr(FakeCache, "deserialize", deserialize)
    return found


def test_each_gpu_of_a_kind_finds_its_own_kernels(tmp_path: Path, gpus: Any, caplog: Any) -> None:
    def started(gpu: int, kernels: Kernels = NO_KERNELS) -> Any:
        gpus.current = gpu
        cache = RuntimeCache.open([Network("e", (), (), ())], tmp_path, kernels)
        assert cache is not None
        cache.create_once(FakeEngine())
        return cache

    for gpu in (0, 1):
        cache = started(gpu)
        assert cache.handle.data == MAGIC and cache.started_empty
        cache.handle.data += b"gpu%d" % gpu
        assert cache.save()
    for gpu in (0, 1, 1, 0):
        assert started(gpu).handle.data == MAGIC + b"gpu%d" % gpu
    assert len(list(tmp_path.iterdir())) == 2 and not caplog.text
    brought = Kernels(engine_cache.machine_key(), MAGIC + b"gpu0")
    for path in tmp_path.iterdir():
        path.unlink()
    assert started(0, brought).path is None and not started(0, brought).started_empty
    cache = started(1, brought)
    cache.handle.data += b"gpu1"
    assert cache.save() and not started(1, brought).started_empty, "a program's kernels of another GPU are no hindrance"
    brought = Kernels(engine_cache.machine_key(), MAGIC + b"gpu0")
    cache = started(0, brought)
    assert cache.path is None and not cache.started_empty, "nor is another GPU's file for those of a program"
    second = RuntimeCache.open([Network("f", (), (), ())], tmp_path)
    assert second is not None and len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = attached(tmp_path / "file" / "a.kernels")
    cache.handle.data += b"one"
    with caplog.at_level(logging.WARNING):
        assert not cache.save()
    assert "cannot be saved" in caplog.text


def test_engines_of_a_program_have_one(tmp_path: Path) -> None:
    cache = attached(tmp_path / "a.kernels")
    before = cache.handle
    cache.create_once(FakeEngine())
    assert cache.handle is before, "what one engine compiled is there for the next"


def test_in_memory_only() -> None:
    cache = attached(None)
    cache.handle.data += b"one"
    assert not cache.save()


def test_a_program_with_some_of_anothers_engines_starts_with_its_kernels(tmp_path: Path) -> None:
    first = attached(tmp_path / "first.kernels")
    first.handle.data += b"one"
    assert first.save() and not first.may_have_new
    second = RuntimeCache(tmp_path / "second.kernels")
    second.copy_kernels_from(first)
    assert second.stored_kernels() == first.stored_kernels() and second.stored_kernels()
    second.copy_kernels_from(RuntimeCache(tmp_path / "none.kernels"))
    assert second.stored_kernels() == first.stored_kernels()


def test_the_oldest_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cache, "MAX_FILES", 3)
    for age, name in enumerate("edcba"):
        cache = attached(tmp_path / f"{name}.kernels")
        cache.handle.data += name.encode()
        cache.save()
        os.utime(tmp_path / f"{name}.kernels", (1000 + age, 1000 + age))
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["a", "b", "c"]


def test_the_key_names_all_that_kernels_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, major, minor = "Some GPU", 9, 0

    monkeypatch.setattr(engine_cache.torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(engine_cache.torch.cuda, "current_device", lambda: 0)
    one, other = Network("e", (), (), ()), Network("other", (), (), ())
    keys = [engine_cache.kernels_key([one]), engine_cache.kernels_key([other]), engine_cache.kernels_key([one, other])]
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    keys.append(engine_cache.kernels_key([one]))
    monkeypatch.setattr(engine_cache, "LIBRARY", "another")
    keys.append(engine_cache.kernels_key([one]))
    Properties.name = "Another GPU"
    keys.append(engine_cache.kernels_key([one]))
    assert len(set(keys)) == len(keys)


def test_the_folder_is_the_users_or_the_one_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PIPELINE_CACHE", raising=False)
    assert cache_folder("runtime").parts[-2:] == ("stagewright", "runtime")
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    assert cache_folder("runtime") == tmp_path / "runtime"


WRITER = """
import sys
from pathlib import Path
from tests.runtime.test_engine_cache import MAGIC, attached
for i in range(60):
    cache = attached(Path(sys.argv[1]))
    assert cache.handle.data.startswith(MAGIC), "half a file was read"
    cache.handle.data = MAGIC + sys.argv[2].encode() * (1000 * (i + 1))
    cache.save()
"""


def test_several_processes_use_one_file(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::UserWarning", "-c", WRITER, str(tmp_path / "a.kernels")]
    writers = [subprocess.Popen([*command, letter], stderr=subprocess.PIPE) for letter in "xy"]
    for writer in writers:
        _, errors = writer.communicate()
        assert writer.returncode == 0, errors.decode()
        assert b"holds no kernels" not in errors
    kernels = (tmp_path / "a.kernels").read_bytes()[:-32]  # without the digest
    assert kernels in {MAGIC + c * 60000 for c in (b"x", b"y")}
    assert len(list(tmp_path.iterdir())) == 1
