"""Configurations that get ready side by side: all before the first is measured, and one that fails stops no other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import together

Rows = list[dict[str, object]]


def prepare(folder: str, name: str) -> Callable[[], Rows]:
    """Leave a file; when measured, another, and tell which there are."""
    if name == "fails":
        raise ValueError("this one\nis not")
    if name == "dies":
        os._exit(3)
    Path(folder, name).touch()
    if name == "slow":
        time.sleep(600)

    def measure() -> Rows:
        before = sorted(path.name for path in Path(folder).iterdir())
        Path(folder, f"{name} measures").touch()
        time.sleep(0.2)
        Path(folder, f"{name} measures").unlink()
        threads = {os.environ[name] for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")}
        return [{"name": name, "there": before, "threads": threads}]

    return measure


def test_a_group_is_prepared_and_then_measured_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(12))
    subjects = [(str(tmp_path), name) for name in ("a", "fails", "dies", "b", "c")]
    found = dict(together.measured(subjects, prepare, together=4, limit=120))
    assert list(found) == subjects
    rows = {name: found[folder, name] for folder, name in subjects}
    assert rows["a"] == [{"name": "a", "there": ["a", "b"], "threads": {"3"}}], "b is ready, and nothing is measured"
    assert rows["b"] == [{"name": "b", "there": ["a", "b"], "threads": {"3"}}]
    assert rows["c"] == [{"name": "c", "there": ["a", "b", "c"], "threads": {"12"}}]
    assert rows["fails"] == "ValueError: this one" and rows["dies"] == "its process ended with code 3"
    assert "OMP_NUM_THREADS" not in os.environ
    said = capfd.readouterr().err
    assert f"{tmp_path} a: prepared" in said and f"{tmp_path} dies: its process ended with code 3" in said


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    before = time.monotonic()
    assert dict(together.measured([(str(tmp_path), "slow")], prepare, limit=1)) == {
        (str(tmp_path), "slow"): "it took too long"
    }
    assert time.monotonic() - before < 60


def test_who_asks_no_further_ends_all(tmp_path: Path) -> None:
    child = together.Child((str(tmp_path), "a"), prepare)
    other = together.Child((str(tmp_path), "slow"), prepare)
    assert child.heard(time.monotonic() + 120) is None
    child.close()
    assert child.process.exitcode == 0, "it was told that nobody asks any more"
    with pytest.raises(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt
        finally:
            other.close()
    assert other.process.exitcode == -9
