"""What GPU tests did is written down as each of them ends."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from benchmarks import environment, gpu_tests, zoo_gpu

TESTS = """
import json
import pytest

pytestmark = pytest.mark.gpu

def test_passes(record_property):
    record_property("zoo_gpu", json.dumps({"task": "t", "name": "n", "dtype": "float16"}))

@pytest.mark.alone
def test_measures(): ...

def test_fails():
    assert 1 == 2, "ones are no twos"

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

def test_errs(broken): ...

def test_is_left_out():
    pytest.skip("no reason")

@pytest.mark.slow
def test_takes_long():
    import time
    time.sleep(600)
"""
NAMES = "test_passes", "test_fails", "test_errs", "test_is_left_out", "test_measures"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_some.py").write_text(TESTS)
    markers = "gpu: needs a GPU", "alone: measures", "slow: takes long"
    (tmp_path / "pytest.ini").write_text("\n    ".join(("[pytest]\nmarkers =", *markers)))
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path


def test_a_row_for_each_test_that_ended(folder: Path) -> None:
    report, early = gpu_tests.run(1, ["test_some.py"], "not long")
    assert early == ""
    assert {row["name"]: row["outcome"] for row in report} == dict(
        zip(NAMES, ("passed", "failed", "error", "skipped", "passed"), strict=True)
    )
    assert gpu_tests.rows(report, "zoo_gpu") == [{"task": "t", "name": "n", "dtype": "float16"}]
    found = gpu_tests.summary(report)
    assert list(found["seconds_of_files"]) == ["test_some"]
    assert found["counts"] == {"test_some": {"error": 1, "failed": 1, "passed": 2, "skipped": 1}}
    assert set(found["not_passed"]) == {"test_some::test_errs", "test_some::test_fails"}
    assert "ones are no twos" in found["not_passed"]["test_some::test_fails"]


def test_what_is_for_every_day_leaves_out_what_is_slow_or_measures(folder: Path) -> None:
    report, early = gpu_tests.run(1, ["test_some.py"], everyday=True, limit=300)
    assert ([row["name"] for row in report], early) == (list(NAMES[:-1]), "")


def test_a_run_that_is_cut_short_keeps_what_ended(folder: Path) -> None:
    report, early = gpu_tests.run(1, ["test_some.py"], limit=20)
    assert ([row["name"] for row in report], early) == (list(NAMES[:-1]), "limit")


def test_so_does_one_that_is_terminated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[gpu_tests.Row] = []

    def save(name: str, result: gpu_tests.Row) -> Path:
        written.append(result)
        return folder / f"{name}.json"

    monkeypatch.setattr(gpu_tests, "save", save)
    monkeypatch.setattr(gpu_tests, "RECORDED", {})
    monkeypatch.setattr(gpu_tests, "gpu_name", lambda: "gpu")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = signal.getsignal(signal.SIGTERM)
    terminate = threading.Thread(target=terminate_once, args=(folder, len(NAMES) - 1))
    try:
        terminate.start()
        assert gpu_tests.main(["--workers", "1", "test_some.py"]) == 1
    finally:
        terminate.join()
        signal.signal(signal.SIGTERM, before)
    assert written[0]["counts"] == {"test_some": {"error": 1, "failed": 1, "passed": 1, "skipped": 1}}
    assert written[0]["ended_early"] == "interrupted"


def terminate_once(folder: Path, ended: int) -> None:
    """Terminate this process as soon as so many tests have ended, after a minute at the latest."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = list(folder.glob("*/tests.jsonl"))
        if found and len(found[0].read_text().splitlines()) >= ended:
            break
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)


def test_an_earlier_result_keeps_its_other_files() -> None:
    before = {
        "counts": {"a": {"failed": 1}, "b": {"failed": 2}},
        "architectures": {},
        "not_passed": {"a::x": "", "b::y": ""},
    }
    result = {"counts": {"b": {"passed": 2}}, "architectures": {}, "not_passed": {}}
    both = gpu_tests.together(result, before)
    assert both["counts"] == {"a": {"failed": 1}, "b": {"passed": 2}}
    assert both["not_passed"] == {"a::x": ""}


def test_what_was_taken_before_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a capture that is refused on a GPU for the first time fails."""
    here = environment.environment()["versions"]
    rows = [{"name": "a", "task": "t"}, {"name": "b", "task": "t", "refused": "why"}, {"name": "c", "task": "t"}]
    for name, versions in (("zoo_gpu_1", here), ("zoo_gpu_2", {**here, "torch": "1.0"})):
        kept = {"versions": versions, "zoo_gpu": rows[: 2 if versions is here else 3]}
        (tmp_path / f"{name}.json").write_text(json.dumps(kept))
    monkeypatch.setattr(environment, "RESULTS", tmp_path)
    zoo_gpu.taken_before.cache_clear()
    assert zoo_gpu.taken_before() == {("t", "a")}
    zoo_gpu.taken_before.cache_clear()
