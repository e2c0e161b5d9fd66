"""The least time of a call: counted work, at speeds that a GPU reaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import floors, summaries
from benchmarks.floors import floor_ms, work
from benchmarks.real_models import Row
from benchmarks.signals import floats


class Attending(nn.Module):
    """A table, a product, and an attention, causal or not."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.table, self.layer, self.causal = nn.Embedding(1000, 64), nn.Linear(64, 64), causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x) + self.table(torch.zeros(1, dtype=torch.int64))
        x = x[:, None]
        return scaled_dot_product_attention(x, x, x, is_causal=self.causal)


@pytest.mark.parametrize("causal", [False, True])
def test_products_and_bytes_are_counted(causal: bool) -> None:
    model, x = Attending(causal), torch.randn(2, 128, 64)
    found = work(model, lambda: model(x), {"x": x})
    attention = 2 * 2 * 128 * 128 * 64 * 2 // (1 + causal)
    assert found["gflop"] == pytest.approx((2 * 2 * 128 * 64 * 64 + attention) / 1e9, abs=0.01)
    assert found["mb"] == pytest.approx(4 * (64 * 64 + 64 + 2 * 2 * 128 * 64) / 1e6, abs=0.01)


def test_the_floor_is_the_longer_time() -> None:
    speeds = {"tflop_s": 100.0, "copy_gb_s": 1000.0}
    row: dict[str, Any] = {"work": {"gflop": 500.0, "mb": 2000.0}}
    assert floor_ms(row, speeds) == 5.0
    assert floor_ms({**row, "speeds": {"tflop_s": 1000.0, "copy_gb_s": 1000.0}}, speeds) == 2.0
    assert floor_ms(row) is floor_ms({"ms": {}}, speeds) is floor_ms({**row, "routed": True}, speeds) is None


def test_rows_are_completed_without_a_gpu_and_become_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "rows", lambda: [Row("small", "", Attending, {"x": floats(2, 128, 64)}, library="")])
    ours, eager = {"gpu_ms": 2.0, "queued_ms": 1.5}, {"gpu_ms": 2.5, "queued_ms": 1.0}
    timed = {"name": "small", "dtype": "float32", "ratio": 1.0, "ms": {"pipeline + graph": ours, "eager": eager}}
    alone = {"name": "alone", "dtype": "float16", "ratio": 1.2}
    data = {"real": [timed, alone], "speeds": {"tflop_s": 0.04, "copy_gb_s": 100.0}}
    data |= {"machine": {"gpu": "NVIDIA H200"}, "versions": {"tensorrt_rtx": "1.6.1"}}
    path = tmp_path / "real.json"
    path.write_text(json.dumps(data))
    assert floors.main([str(path)]) == 0
    done = json.loads(path.read_text())
    assert done["real"][0]["work"]["gflop"] == 0.01 and "work" not in done["real"][1]
    [row] = summaries._real(done)
    assert row == ["small", "float32", "H200, RTX 1.6", "2 / 1.5", "2.5 / 1", "eager", "1.50", "0.25", "12%", "1.0"]
    assert [*summaries._untimed(done)] == [
        "H200, RTX 1.6. *Error* of models whose times were not compared: alone in float16 1.2.\n"
    ]
