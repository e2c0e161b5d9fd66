"""Models at real size: rows are run in processes of their own, go on where they stopped, and become a table."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from benchmarks import real, real_dynamic, real_row, real_tables, tables
from benchmarks.real_models import Row
from benchmarks.signals import floats

WRITES = 'import json, sys; json.dump({"name": "a", "dtype": "float16", "phase": "done"}, open(sys.argv[1], "w"))'
DIES = 'print("no memory"); raise SystemExit(3)'
STAYS = 'import json, sys, time; json.dump({"phase": "build"}, open(sys.argv[1], "w")); time.sleep(60)'
TELLS = 'import json, os, sys; json.dump({"gpu": os.environ["CUDA_VISIBLE_DEVICES"]}, open(sys.argv[1], "w"))'


def job(name: str, code: str) -> real.Job:
    return real.Job(name, "float16", (sys.executable, "-S", "-c", code))


def read(path: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_each_job_has_a_row_whatever_becomes_of_it(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    late = 'import json, sys, time; json.dump({"phase": "done"}, open(sys.argv[1], "w")); time.sleep(60)'
    jobs = [job("a", WRITES), job("dies", DIES), job("stays", STAYS), job("late", late)]
    assert real.run(jobs, out, processes=4, gpus=2, limit=1) == 0
    rows = read(out)
    assert "failed" not in rows["a"] and "failed" not in rows["late"]
    assert rows["dies"]["failed"] == {"phase": "start", "error": "its process ended with code 3: no memory"}
    assert rows["stays"]["failed"] == {"phase": "build", "error": "it took too long"}
    assert real.finished(out) == {(name, "float16", False, "") for name in ("a", "dies", "stays", "late")}
    assert real.finished(out, failed=False) == {(name, "float16", False, "") for name in ("a", "late")}
    assert real.finished(tmp_path / "none") == set()


def test_what_runs_when_the_time_is_over_has_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    began = time.monotonic()
    assert real.run([job("stays", STAYS), job("a", WRITES)], out, seconds=2) == 2
    assert time.monotonic() - began < 10
    assert read(out) == {}
    assert "stays float16 is not finished: {'phase': 'build'" in capsys.readouterr().out


def test_an_interrupt_ends_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[real.Running]()

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    def running(*given: Any) -> real.Running:
        made.append(running_as_before(*given))
        return made[-1]

    running_as_before = real.Running
    monkeypatch.setattr(real, "Running", running)
    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        real.run([job("stays", STAYS), job("too", STAYS)], tmp_path / "rows.jsonl", processes=2)
    assert [each.process.poll() for each in made] == [-9, -9]


def test_gpus_have_jobs_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    real.run([job("a", TELLS), job("b", TELLS)], tmp_path / "rows.jsonl", processes=2, gpus=2)
    assert {row["gpu"] for row in read(tmp_path / "rows.jsonl").values()} == {"4", "6"}


def test_rows_measure_on_cores_that_nothing_else_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    first, second = (real.cores(gpu, 2) for gpu in (0, 1))
    assert first == ([0, 1], [*range(4, 32)]) and second == ([2, 3], [*range(4, 32)])
    assert real.cores(0, 3) == ([*range(32)], [*range(32)]), "a machine with few cores leaves none free"


def test_all_threads_of_a_process_move(monkeypatch: pytest.MonkeyPatch) -> None:
    before, end, found = os.sched_getaffinity(0), threading.Event(), list[set[int]]()
    thread = threading.Thread(target=lambda: (end.wait(), found.append(os.sched_getaffinity(0))))
    thread.start()
    monkeypatch.setenv(real.MEASURING, str(min(before)))
    with real_row.urgent():
        assert os.sched_getaffinity(0) == {min(before)}
        end.set()
        thread.join()
    assert found == [{min(before)}] and os.sched_getaffinity(0) == before


def test_rows_that_are_there_are_not_asked_for_again(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text('{"name": "resnet-50", "dtype": "float16", "failed": {}}\n{"name": "resnet-50", "dtyp')

    def asked(*more: str) -> list[tuple[str, bool]]:
        options = real.parser().parse_args(["--out", str(out), "--rows", "^resnet", *more])
        return [(job.dtype, job.exact) for job in real.jobs(options, [])]

    assert asked() == [("bfloat16", False)]
    assert asked("--retry") == [("float16", False), ("bfloat16", False)]
    assert asked("--exact", "--dtypes", "float16") == [("float16", True)]


def test_those_that_run_together_are_not_too_heavy(tmp_path: Path) -> None:
    writes = 'import json, sys, time; time.sleep(0.2); json.dump({"at": time.time()}, open(sys.argv[1], "w"))'
    jobs = [attrs.evolve(job(f"{heavy} {i}", writes), heavy=heavy) for i, heavy in enumerate((9, 3, 2, 1))]
    real.run(jobs, tmp_path / "rows.jsonl", processes=4, most=4)
    rows = read(tmp_path / "rows.jsonl")
    assert next(iter(rows)) == "9 0"
    assert rows["3 1"]["at"] + 0.2 <= rows["2 2"]["at"]
    assert rows["1 3"]["at"] < rows["2 2"]["at"]


def test_one_alone_waits_for_all_and_is_not_overtaken(tmp_path: Path) -> None:
    turns, told = real_row.Turns(tmp_path), list[str]()

    def take(name: str, alone: bool) -> None:
        with turns.held(alone):
            told.append(name)

    with turns.held(), turns.held():
        alone = threading.Thread(target=take, args=("alone", True))
        alone.start()
        time.sleep(0.1)
        late = threading.Thread(target=take, args=("late", False))
        late.start()
        time.sleep(0.1)
        assert told == []
    alone.join()
    late.join()
    assert told == ["alone", "late"]


class Small(torch.nn.Module):
    """A network with a batch normalization, which returns what libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {
            "hidden": self.norm(self.convolution(x)).relu(),
            "none": None,
            "count": torch.ones(1, dtype=torch.int64),
        }


SMALL = Row("small", "of a test", Small, {"x": floats(2, 3, 8, 8)}, convolutions=True)


def test_a_row_says_what_was_found(tmp_path: Path) -> None:
    report = real_row.Report(tmp_path / "row.json")
    found = real_row.run(SMALL, "float16", "cpu", report, real_row.Turns(tmp_path), exact=True)
    assert json.loads(report.path.read_text()) == found
    assert "failed" not in found, found["failed"]
    assert (found["phase"], found["bound"]) == ("done", 2)
    assert found["outputs"] == [[2, 8, 6, 6]]
    assert found["moved"] > 0.1
    assert 0 < found["eager_error"] < 1e-3 > found["error"] > 0
    assert found["engines"] == 1
    assert found["seconds"]["first result"] >= found["seconds"]["compile"] >= found["stages"]["build"] > 0
    out = tmp_path / "rows.jsonl"
    wrong = {**found, "dtype": "bfloat16", "failed": {"phase": "load", "error": "a | b"}}
    out.write_text("".join(json.dumps(row) + "\n" for row in (found, wrong, {"name": "of nowhere", "failed": {}})))
    [path] = real_tables.merge([out], tmp_path)
    assert path.name.startswith("real-cpu-tensorrt_rtx-")
    assert real_tables.merge([out], tmp_path) == [path]
    text = real_tables.part(tmp_path)
    assert "Of 2 rows that are not routed, 1 are within their bound; 1 of all 2 failed." in " ".join(text.split())
    assert (
        f"| `small` | float16 exact | {found['error']:.1e} | {found['eager_error']:.1e} | {found['ratio']:.2f} |"
        in text
    )
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    assert "- `small` in bfloat16 exact, in load: a | b" in text


def test_a_row_that_fails_says_where(tmp_path: Path) -> None:
    def broken(*_: object) -> torch.nn.Module:
        return torch.nn.Linear(4, 4)

    report = real_row.Report(tmp_path / "row.json")
    row = Row("broken", "", broken, {"input": floats(2, 5)})
    found = real_row.run(row, "float16", "cpu", report, real_row.Turns(tmp_path))
    assert found["failed"]["phase"] == "reference"
    assert found["failed"]["error"].startswith("RuntimeError: mat1 and mat2")


SIZED = real_dynamic.Case("sized", "of a test", Small, lambda size: {"x": floats(2, 3, size, size)}, (6, 8, 10, 12, 16))


def test_a_program_for_all_sizes_is_compared_with_one_for_each(tmp_path: Path) -> None:
    report, case = real_row.Report(tmp_path / "row.json"), attrs.evolve(SIZED, multiple=2)
    found = real_dynamic.one(case, "float16", "cpu", report, real_row.Turns(tmp_path), specializations=["eager"])
    assert "failed" not in found, found["failed"]
    assert [size["size"] for size in found["sizes"]] == list(case.sizes)
    assert all(0 < size[name] < 1e-3 for size in found["sizes"] for name in ("error", "static_error", "eager_error"))
    assert all(0 < size["eager_kernels_error"] < 1e-3 for size in found["sizes"])
    assert (found["engines"], found["fallbacks"]) == (1, 0)
    for number, size in enumerate(found["sizes"], 1):
        size["static_engines"] -= number == 1
        size["ms"] = {"dynamic": {"gpu_ms": 1.0 + number / 20}, "static": {"gpu_ms": 1.0}}
    out = tmp_path / "rows.jsonl"
    early = {**found, "dtype": "bfloat16", "sizes": [], "failed": {"phase": "compile", "error": "it took too long"}}
    out.write_text("".join(json.dumps(row) + "\n" for row in ({**found, "changing": 1.12}, early)))
    (results := tmp_path / "results").mkdir()
    [path] = real_tables.merge([out], results)
    text = tables.page(results)
    assert path.name.startswith("sizes-cpu-tensorrt_rtx-")
    assert "2 of 5 measured sizes have it" in " ".join(text.split())
    assert "| `sized`, float16 | batch | 6: 1.05, 1\\*, 1.05 | 8: 1.1, 1, 1.10 | 10: 1.15, 1, **1.15** |" in text
    assert "| **1.12** |" in text
    assert "- `sized` in bfloat16, in compile: it took too long" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_a_size_that_changes_is_timed_beside_one_that_does_not() -> None:
    passed = list[int]()
    inputs = [{"x": 1}, {"x": 2}]
    assert real_dynamic.in_turn(lambda x: passed.append(x), inputs) < 1
    assert passed == [1, 2] * (3 + real_dynamic.TURNS)
    del passed[:]
    assert real_dynamic.alone(lambda x: passed.append(x), inputs) < 1
    assert passed == [1] * (3 + real_dynamic.TURNS) + [2] * (3 + real_dynamic.TURNS)


def test_errors_are_relative_to_each_output() -> None:
    best = [torch.tensor([3.0, 4.0]), torch.tensor([10.0])]
    assert real_row.errors([torch.tensor([3.0, 4.5]), torch.tensor([10.0])], best) == pytest.approx([0.1, 0.0])
    assert real_row.ratio([0.01, 0.4], [0.01, 0.1], torch.float16) == 4.0
    assert real_row.ratio([2.0**-13], [0.0], torch.float16) == 1.0
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not finite"):
            real_row.errors([torch.tensor([wrong, 1.0]), best[1]], best)


def test_what_is_measured_and_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> Any:
        raise RuntimeError("no graph\nat all")

    counts = list[int]()

    def in_turns(calls: dict[str, Any], around: Any, *, count: int, **how: Any) -> dict[str, dict[str, float]]:
        counts.append(count)
        return {name: {"gpu_ms_quiet": 2.0, "calls_per_second_quiet": 400.0} for name in calls}

    monkeypatch.setattr(real_row, "in_turns", in_turns)
    monkeypatch.setattr(real_row, "REST", 0.1)
    for method in real.METHODS:
        monkeypatch.setitem(real_row.HOW, method, refuses)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    report, module = real_row.Report(tmp_path / "row.json"), torch.nn.ReLU()
    given = {"model": module, "inputs": {"input": torch.ones(2)}, "module": module}
    real_row._measured(given, real.METHODS, report, real_row.Turns(tmp_path))
    assert report.found["ms"].keys() == {"pipeline + graph", "eager"}
    assert report.found["ms"]["eager"] == {"gpu_ms": 2.0, "queued_ms": 2.5}
    assert report.found["refused"] == dict.fromkeys(real.METHODS, "RuntimeError: no graph")
    assert counts == [real_row.AT_MOST]


def test_slower_is_slower_in_one_of_the_measures() -> None:
    ours, other = {"gpu_ms": 1.0, "queued_ms": 1.0}, {"gpu_ms": 2.0, "queued_ms": 0.9}
    row = {"ms": {"pipeline + graph": ours, "eager + graph": other}}
    assert real_tables.slower(row, ["eager + graph"])
    assert not real_tables.slower(row, ["torch.compile"])
    assert not real_tables.slower({"ms": {**row["ms"], "eager + graph": ours}}, ["eager + graph"])
