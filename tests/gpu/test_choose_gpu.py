"""`choose` on a GPU: all forms of a program are measured and right, with and without a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn

import pipeline
from pipeline.compiled import Compiled
from pipeline.profiling.measure import SegmentCost
from pipeline.stages import choose

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_all_forms_are_measured_and_right(cuda_graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LARGE", 0)
    asked = list[Compiled]()

    def timer(programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
        asked.extend(programs)
        times = choose.measured(programs, profile)
        [engine], [parts], [captured] = (list(costs.values()) for costs in times)
        for cost in (engine, parts, captured):
            assert cost.gpu > 0 and (cost.host == 0) == cuda_graphs
        return times

    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)).cuda().half().eval()
    x = torch.randn(64, 256, device="cuda", dtype=torch.half)
    compile = pipeline.default(min_block_size=1, cuda_graphs=cuda_graphs).replace("choose", choose.Choose(timer))
    with torch.no_grad():
        compile(model, (x,))
        expected = model(x)
        for form, tolerance in zip(asked, (1e-2, 1e-2, 0.0), strict=True):
            module = form.module()
            for _ in range(3):
                torch.testing.assert_close(module(x), expected, rtol=tolerance, atol=tolerance)
            assert not module.refused_graphs
