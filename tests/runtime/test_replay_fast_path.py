"""The fast path of a call that replays a graph: which calls take it, and that no other does."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.compiled import CompiledModule
from pipeline.records.sharding import Sharding
from pipeline.runtime import cuda_worker
from pipeline.runtime import replay_fast_path as quick
from pipeline.runtime.call_plan import CallPlan
from pipeline.runtime.cuda_graphs import CapturedCall, CudaGraphs
from pipeline.runtime.cuda_worker import CudaWorker
from pipeline.runtime.replay_fast_path import tensor_guard
from pipeline.runtime.worker import Pool
from tests.runtime.fake_engine import CPU, FakeLane


class Scaled(nn.Module):
    """x[n, 4] and y[n, 4] -> their sum, scaled by what was seen before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + y


class FakeGraph:
    """Computes a call again, as a graph does, with the inputs that it was captured with, but for those it copies."""

    fast_replay: Any = None

    def __init__(self, worker: Any, plan: CallPlan, leaves: Sequence[Any], still: Mapping[int, int]) -> None:
        self.worker, self.plan, self.captured, self.still = worker, plan, list(leaves), tuple(still.items())
        self.replays = 0

    has_same_addresses = CapturedCall.has_same_addresses

    def __call__(self, leaves: Sequence[Any], stream: int) -> list[Any]:
        self.replays += 1
        still = dict(self.still)
        given = [self.captured[i] if i in still else leaf for i, leaf in enumerate(leaves)]
        result: list[Any] = self.worker.executor(self.plan, given)
        return result


class Graphs(CudaGraphs):
    """Captures a call by keeping its inputs."""

    asked = 0

    def find_or_capture(self, plan: CallPlan, leaves: Sequence[Any], worker: Any) -> Any:
        self.asked += 1
        return super().find_or_capture(plan, leaves, worker)

    def _capture(self, plan: CallPlan, leaves: Sequence[Any], worker: Any, still: Mapping[int, int]) -> Any:
        while len(self.kept) >= self.limit:
            self.kept.pop(next(iter(self.kept)))
        made: Any = FakeGraph(worker, plan, leaves, still)
        self.kept[plan] = made
        return made


@cache
def compiled() -> tuple[nn.Module, pipeline.Compiled]:
    torch.manual_seed(0)
    model, rows = Scaled().eval(), Dim("rows", min=1, max=9)
    given = {"args": (torch.randn(4, 4),), "kwargs": {"y": torch.randn(4, 4)}}
    return model, pipeline.default()(model, **given, dynamic_shapes={"x": {0: rows}, "y": {0: rows}})


def graphed(monkeypatch: pytest.MonkeyPatch, limit: int = 8) -> tuple[CompiledModule, Graphs, nn.Module]:
    monkeypatch.setattr(cuda_worker, "StreamOrder", FakeLane)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    model, program = compiled()
    module, graphs = program.module("reference", cuda_graphs=True), Graphs(limit, reuse=False)
    make: Any = partial(CudaWorker, module._layout, module._parts, CPU, module.settings, graphs)  # type: ignore[arg-type]
    module._workers = Pool(make, 1)
    return module, graphs, model


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.shape == want.shape and torch.allclose(got, want, atol=1e-5)


def variants(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors that differ from a tensor in one thing each."""
    wide = torch.empty(x.shape[0], 8)[:, ::2]
    wide.copy_(x + 1)
    return {
        "the same": x,
        "other numbers there": x.add_(1.0),
        "elsewhere": x + 2,
        "in another order": (x + 3).T.contiguous().T,
        "not dense": wide,
        "fewer rows": x[:2],
        "a view of it": x.view(x.shape),
        "its memory in another order": torch.as_strided(x, x.shape, (1, x.shape[0])),
        "one of which gradients are asked": (x + 4).requires_grad_(),
        "a parameter": nn.Parameter(x + 5),
        "a negative view": torch._neg_view(x),
    }


KINDS = list(variants(torch.zeros(4, 4)))
calls = st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS), st.sampled_from([4, 1, 9]))


@given(st.lists(calls, min_size=1, max_size=10))
def test_every_call_gives_what_the_model_gives(chosen: list[tuple[str, str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        module, _, model = graphed(patch)
        kept = {rows: (torch.randn(rows, 4), torch.randn(rows, 4)) for rows in (1, 4, 9)}
        for first, second, rows in chosen:
            x, y = variants(kept[rows][0])[first], variants(kept[rows][1])[second]
            if x.shape != y.shape:
                x, y = x[: min(len(x), len(y))], y[: min(len(x), len(y))]
            for _ in range(3):
                assert close(module(x, y=y), model(x, y)), (first, second, rows)


def test_calls_like_the_last_one_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module, graphs, model = graphed(monkeypatch)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(5):
        x.normal_()
        assert close(module(x, y=y), model(x, y))
    assert graphs.asked == 2 and next(iter(graphs.kept.values())).replays == 4
    for _ in range(3):
        module(x[:2], y=y[:2])
    assert graphs.asked == 4
    module(x, y=y)
    assert graphs.asked == 5, "another shape came between"
    for other in variants(x).values():
        module(x, y=y)
        z = y[: len(other)]
        assert close(module(other, y=z), model(other, z))


def test_other_inputs_are_the_errors_that_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, model = graphed(monkeypatch)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(3):
        module(x, y=y)
    with pytest.raises(TypeError, match="x"):
        module(x.double(), y=y)
    for args, named in (((x,), {}), ((x,), {"z": y}), ((x, 3), {"y": y})):
        with pytest.raises(TypeError):
            module(*args, **named)
    with pytest.raises(pipeline.ShapeError):
        module(x, y=torch.randn(3, 4))
    assert close(module(x, y=y), model(x, y))


@pytest.mark.parametrize("capturing", [True, False])
def test_a_call_that_its_graph_does_not_fit_is_no_example(capturing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran without the graph, which is still there: the caller captured it, or the plan had been forgotten."""
    module, graphs, model = graphed(monkeypatch)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(2):
        module(nn.Parameter(x), y=y)  # not a plain tensor: no fast replay
    if capturing:
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            assert close(module(x.t(), y=y), model(x.t(), y))
    else:
        graphs._seen.clear()
    for _ in range(3):
        assert close(module(x.t(), y=y), model(x.t(), y))


def test_what_tells_calls_apart_is_made_once_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, _ = graphed(monkeypatch)
    made: list[int] = []
    monkeypatch.setattr(quick, "tensor_guard", lambda leaves: (made.append(len(leaves[0])), tensor_guard(leaves))[1])
    shapes = [(torch.randn(rows, 4), torch.randn(rows, 4)) for rows in (2, 4)]
    for _ in range(6):
        for x, y in shapes:
            module(x, y=y)
    assert sorted(made) == [2, 4]


def test_a_graph_that_is_gone_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    module, graphs, model = graphed(monkeypatch)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(2):
        module(x, y=y)
    [(plan, old)] = graphs.kept.items()
    graphs.kept[plan] = new = FakeGraph(old.worker, plan, (x, y), dict(old.still))  # type: ignore[attr-defined, assignment]
    assert close(module(x, y=y), model(x, y))
    assert (old.replays, new.replays) == (1, 1)  # type: ignore[attr-defined]
    graphs.kept.clear()
    gone = weakref.ref(old)
    del old
    assert gone() is None, "what forgets a graph frees it"
    assert close(module(x, y=y), model(x, y))


def test_another_gpu_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    module, graphs, model = graphed(monkeypatch)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(2):
        module(x, y=y)
    worker: Any = module._workers.take()
    worker.lane.away = True
    module._workers.give(worker)
    monkeypatch.setattr(CudaWorker, "__call__", lambda self, plan, leaves: self.executor(plan, leaves))
    assert close(module(x, y=y), model(x, y))
    assert next(iter(graphs.kept.values())).replays == 1


def test_a_state_has_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    module, graphs, model = graphed(monkeypatch)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(2):
        module(x, y=y)
    other = module.new_state()
    assert module._fast_replay is not None and other._fast_replay is None
    for _ in range(2):
        assert close(other(x, y=y), model(x, y))
    assert len(graphs.kept) == 2
    module.float()
    assert module._fast_replay is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_what_a_plain_tensor_is(mode: Any) -> None:
    x = torch.zeros(3, 4)
    with mode():
        alike = tensor_guard([x, x.clone()])
        assert alike is not None and alike(x, torch.ones(3, 4))
        others = torch.zeros(4, 4), torch.zeros(4, 3).T, x.double(), x.to("meta"), x.to_sparse(), [3.0], None
        for other in others:
            assert not alike(x, other)
        assert not alike(x, torch._neg_view(x.clone()))
        assert not alike(x, x), "torch's check takes no tensor twice: such calls look up their plan"
    for leaves in ([], [x, 3], [nn.Parameter(x)], [x.to_sparse()], [None]):
        assert tensor_guard(leaves) is None


@pytest.mark.parametrize("sharding", [None, Sharding(0, 2)], ids=["alone", "a rank"])
def test_inputs_that_move_let_no_rank_capture_again(monkeypatch: pytest.MonkeyPatch, sharding: Sharding | None) -> None:
    """A capture runs the program's collectives, which all ranks have to do at the same call."""
    module, graphs, model = graphed(monkeypatch)
    layout: Any = module._layout
    object.__setattr__(layout, "program", evolve(layout.program, sharding=sharding))  # frozen, and this module's own
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(2):
        module(x, y=y)
    [first] = graphs.kept.values()
    for moved in (x + 1, x + 2):
        assert close(module(moved, y=y), model(moved, y))
    assert (first in graphs.kept.values()) is (sharding is not None)
