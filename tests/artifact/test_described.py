"""inspect, report and diff read the records of a file, and run nothing of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch.utils._python_dispatch import TorchDispatchMode

import pipeline
from pipeline.artifact.container import MANIFEST
from pipeline.artifact.inspect import inspect
from pipeline.viewing import collect
from pipeline.viewing.collect import view_program
from pipeline.viewing.sources import open_view as view_of_file
from tests.artifact.test_hostile_files import Records, entries, nodes_of, of_recipe, written  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")


class NothingRuns(TorchDispatchMode):
    """An error wherever an operator runs, but for tensors without values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten.empty.memory_format and kwargs["device"].type == "meta", func
        return func(*args, **kwargs)


def test_describing_a_file_runs_nothing_of_it(
    entries: dict[str, bytes],  # noqa: F811
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    path = written(entries, lambda records: None, tmp_path / "p.trtp")
    whole = view_program(pipeline.load(path), "p")
    with NothingRuns():
        seen = view_of_file(path)
        assert evolve(seen, versions=whole.versions, weights_digest="") == whole
        monkeypatch.setattr("pipeline.shapes.environment.eval", None, raising=False)
        monkeypatch.setattr("pipeline.artifact.op_names.find_callable", None)
        assert "engine" in str(inspect(path))
    monkeypatch.undo()
    path = written(entries, of_recipe(target="aten.from_file.default", args=["/etc/passwd"]), tmp_path / "q.trtp")
    assert "/etc/passwd" in str(view_of_file(path))


def test_sizes_of_a_file_take_no_time(
    entries: dict[str, bytes],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collect, "MOST_PARTS", 3000)
    symbols = ["Symbol", "s9", "integer", "positive"]
    terms = [["Mod", ["Mul", symbols, 2 + i], 7 + i] for i in range(400)]

    def change(records: Records) -> None:
        sizes = records[MANIFEST]["shapes"]["symbols"]
        sizes.append(["s9", {"range": {"min": 1, "opt": 2, "max": 4000}}])
        for place, row in enumerate(nodes_of(records)):
            tensor = (row.get("value") or {}).get("tensor") if row["op"] == "call_function" else None
            if tensor and tensor.get("shape"):
                tensor["shape"][0] = ["Add", place, *terms]

    start = time.process_time()
    assert "s9" in str(view_of_file(written(entries, change, tmp_path / "p.trtp")))
    assert time.process_time() - start < 5


def test_a_view_of_parts_that_do_not_fit_is_refused(
    entries: dict[str, bytes],  # noqa: F811
    tmp_path: Path,
) -> None:
    def change(records: Records) -> None:
        for row in nodes_of(records):
            if row["op"] == "placeholder" and "value" in row:
                row["value"]["tensor"]["shape"][0] = ["Symbol", "s77", "integer", "positive"]

    with pytest.raises(pipeline.ArtifactError, match="contradict each other"):
        view_of_file(written(entries, change, tmp_path / "p.trtp"))
