"""Results of models on several GPUs become a table."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import sharded_tables

AT = {"date": "2026-11-29", "versions": {"tensorrt_rtx": "1.6.1.120"}, "machine": {"gpu": "NVIDIA H200"}}
ROW = {"model": "8B", "layers": None, "batch": 1, "prompt": 2048, "share_of_copies": 0.366, "at": AT}

STEP = {"model": "8B", "layers": None, "batch": 1, "tokens": 1, "method": "pipeline", "ranks": 2, "at": AT}
STEP |= {"engines_ms": 2.0, "engines": 8, "collectives_ms": 1.0, "collectives": 6}


def test_the_newest_row_of_a_method_is_in_the_table(tmp_path: Path) -> None:
    rows = [
        {**ROW, "method": "pipeline", "token_ms": 6.0, "token_nccl_ms": None, "prompt_ms": 90.0},
        {**ROW, "method": "pipeline", "token_ms": 4.916, "token_nccl_ms": 3.67, "prompt_ms": 50.6},
        {**STEP, "step_ms": 9.0, "overhead_ms": 5.0},
        {**STEP, "step_ms": 4.0, "overhead_ms": 1.0, "between_ms": 0.2},
        {"hang_test": "passed", "runs": 50, "ended_by": [1, -9], "seconds": 3.8, "timeout": 60, "at": AT},
    ]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(map(json.dumps, rows)))
    [path] = sharded_tables.merge([lines], tmp_path)
    assert path.name == "sharded-nvidia-h200-tensorrt_rtx-1.6.1.120.json"
    data = json.loads(path.read_text())
    assert [*sharded_tables.table_rows(data)] == [
        ["8B", "1", "2048", "pipeline", "4.92", "3.67", "50.6", "37%", "", ""]
    ]
    assert [*sharded_tables.whole_rows(data)] == [["8B", "1", "", "4.92 / 50.6", "", ""]]
    steps = [["2 NVIDIA H200", "8B", "1", "1", "pipeline", "4", "2 (8)", "1 (6)", "1 (25%)", "0.2"]]
    assert [*sharded_tables.overhead_rows(data)] == steps
    assert data["hangs"] == [{"hang_test": "passed", "runs": 50, "ended_by": [1, -9], "seconds": 3.8, "timeout": 60}]
    assert sharded_tables.merge([lines], tmp_path) == [path] and json.loads(path.read_text()) == data
