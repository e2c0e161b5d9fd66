"""Models at the sizes of real checkpoints: engines load, and err at most as many times as eager as the row says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import real_models, real_row
from benchmarks.real_models import Row

pytestmark = pytest.mark.gpu

ROWS = [row for row in real_models.rows() if row.small]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_model_at_real_size(
    row: Row, dtype: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip(row.library or "torch")
    found = real_row.run(row, dtype, "cuda", real_row.Report(tmp_path / "row.json"), real_row.Turns(tmp_path))
    record_property("real", json.dumps(found))
    assert "failed" not in found, json.dumps(found["failed"], indent=1)
    assert found["moved"] > 0.01, "an output hardly depends on the inputs"
    assert found["ratio"] <= row.bound, {name: found[name] for name in ("error", "eager_error", "ratio")}
