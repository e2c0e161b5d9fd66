"""Measurements are kept by GPU and versions: equal programs are then compiled alike, also without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifact import measurement_file
from pipeline.artifact.measurement_file import MeasurementFile, measurement_store
from pipeline.profiling.measurements import Keys
from pipeline.settings import CompilationSettings
from pipeline.stages import choose
from tests.stages.test_choose import Times, compiled


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that puts a GPU into this machine, or takes it out."""

    def there(name: str) -> None:
        for module in (measurement_file, choose):
            monkeypatch.setattr(module, "has_gpu", lambda: bool(name))
            monkeypatch.setattr(module, "is_for_this_gpu", lambda targets: not targets or "9.0" in targets)
        monkeypatch.setattr(measurement_file.torch.cuda, "get_device_name", lambda: name)
        monkeypatch.setattr(measurement_file, "current_capability", lambda: "9.0")

    monkeypatch.setattr(choose, "copy_cached_kernels", lambda before, after: None)
    there("NVIDIA H200")
    return there


def test_a_later_compilation_chooses_alike_without_measuring(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept, first = MeasurementFile(tmp_path / "times.json"), Times({1: 1.5})
    found = compiled(first, monkeypatch, kept)
    again, elsewhere, without = Times({0: 9.0}), Times({0: 9.0}), Times({})
    same = compiled(again, monkeypatch, kept)
    assert not again.asked and same.coverage == found.coverage and len(same.engines) == 2
    gpu("NVIDIA H100")
    assert len(compiled(elsewhere, monkeypatch, kept).engines) == 2 and len(elsewhere.asked) == 3
    rows = json.loads(kept.path.read_text())["rows"]
    assert [row["gpu"] for row in rows] == ["NVIDIA H200"] * 4 + ["NVIDIA H100"] * 4
    gpu("")
    assert len(compiled(without, monkeypatch, kept).engines) == 3  # of which GPU is not known
    kept.path.write_text(json.dumps({"format": "pipeline measurements", "schema": 1, "rows": rows[:4]}))
    there = compiled(without, monkeypatch, kept)
    assert len(there.engines) == 2 and there.coverage.fallback == found.coverage.fallback
    assert len(compiled(without, monkeypatch, kept, compute_capabilities=("8.9",)).engines) == 3
    assert not without.asked and kept.load(("9.0",)) == kept.load(()) and not kept.load(("9.0", "8.9"))


def test_a_whole_program_is_chosen_alike(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept, again = MeasurementFile(tmp_path / "times.json"), Times({})
    found = compiled(Times({1: 1.5}, captured=2.5), monkeypatch, kept)
    same = compiled(again, monkeypatch, kept)
    assert not same.engines and not again.asked and same.coverage == found.coverage


def test_keys_are_of_structure_and_of_settings_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"faster_in_torch": False}
    one, same = (Keys.of(compiled(Times({}), monkeypatch, **options, **more)) for more in ({}, {"progress": False}))
    graphs = Keys.of(compiled(Times({}), monkeypatch, cuda_graphs=True, **options))
    assert one == same and one.program != graphs.program and len({*one.engines.values()}) == 3
    assert not {*one.engines.values()} & {*graphs.engines.values()}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "pipeline measurements", "schema": 2}',
        '{"format": "pipeline measurements", "schema": 1, "code": "x"}',
        *(
            json.dumps(
                {
                    "format": "pipeline measurements",
                    "schema": 1,
                    "rows": [
                        {"key": "a" * 64, "gpu": "", "capability": "9.0", "tensorrt": "", "torch": "", "engine_ms": 1.0}
                        | changed
                    ],
                }
            )
            for changed in ({"key": "a"}, {"engine_ms": -1.0}, {"engine_ms": "1"}, {"torch_ms": {"float": "nan"}})
        ),
    ],
)
def test_what_is_no_such_file_is_said_and_stays(
    text: str, gpu: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "times.json"
    path.write_text(text)
    kept = MeasurementFile(path)
    kept.save({"b" * 64: (1.0, None)})
    assert not kept.load(()) and path.read_text() == text
    assert "is not a file of measurements" in caplog.text and "delete it" in caplog.text


def test_the_settings_name_the_file(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    for chosen, place in (
        (True, tmp_path / "measurements/measurements.json"),
        (f"{tmp_path}/t.json", tmp_path / "t.json"),
    ):
        kept = measurement_store(CompilationSettings(measurements=chosen))
        kept.save({"b" * 64: (1.0, None), "c" * 64: (1.0, 2.0)})
        assert place.exists() and kept.load(()) == {"b" * 64: (1.0, None), "c" * 64: (1.0, 2.0)}
    off = measurement_store(CompilationSettings(measurements=False))
    off.save({"b" * 64: (1.0, None)})
    assert not off.load(())
