"""Large outputs of CUDA graphs: the call is captured again for the caller's memory, once that returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.runtime import cuda_graphs
from tests.gpu.test_runtime_gpu import BATCH, Mixed, X, compiled, values, worker

pytestmark = pytest.mark.gpu


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output is taken for a large one."""
    monkeypatch.setattr(cuda_graphs, "LARGE", 1)


def replays(run: Any) -> list[Any]:
    """What replays each graph."""
    graphs = worker(run).graphs
    assert graphs is not None and graphs.refused == {}
    return [call._replay for call in graphs.kept.values()]


@pytest.mark.parametrize("moving", [False, True])
def test_large_outputs_are_written_at_once(at_once: None, moving: bool) -> None:
    """Results that are dropped, and results that are kept, of inputs that move or stay."""
    run = compiled(Mixed(), X, dynamic=BATCH).module(cuda_graphs=True)
    x, held = values(4, 0), []
    for i in range(60):
        if moving:
            x = values(4, i)
        else:
            x.copy_(values(4, i))
        y, z = run(x)
        want = torch.relu(x * Mixed().scale.cuda() + 1) * 2 - x
        assert torch.equal(y, want)
        assert torch.equal(z, torch.relu(torch.cumsum(want, 0) * 0.5) + x)
        if i % 20 >= 14:
            held.append((y, z, y.clone(), z.clone()))
    assert all(torch.equal(y, u) and torch.equal(z, v) for y, z, u, v in held)


def test_memory_that_was_written_at_once_returns(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing keeps it from returning: from then on no call copies, and none is captured again."""
    run, x = compiled(Mixed(), X, dynamic=BATCH).module(cuda_graphs=True), values(4, 0)
    for _ in range(40):
        run(x)
    [replay] = replays(run)
    launched: list[str] = []
    monkeypatch.setattr(replay._own, "launch", lambda stream: launched.append("with a copy"))
    monkeypatch.setattr(replay, "_again", lambda: launched.append("captured again"))
    for _ in range(20):
        run(x)
    assert launched == []
    assert 0 < len(replay._instances) <= 4


def test_large_outputs_of_several_shapes(at_once: None) -> None:
    run = compiled(Mixed(), X, dynamic=BATCH).module(cuda_graphs=True)
    for i in range(30):
        for n in (4, 1, 64, 7):
            x = values(n, i)
            for actual, expected in zip(run(x), Mixed()(x.cpu()), strict=True):
                assert torch.equal(actual.cpu(), expected)
    assert [replay._again is not None for replay in replays(run)] == [True] * 4
