"""Engines of fixed shapes that TensorRT-RTX launches as CUDA graphs of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline
from pipeline.errors import ExecutionError
from pipeline.runtime import engine_session
from tests.gpu.test_runtime_gpu import APART, Counter, Mixed, X, compiled, values
from tests.gpu.threads import in_threads

pytestmark = pytest.mark.gpu

SCALE = torch.tensor([0.5, 2.0, 4.0])


def right(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> bool:
    want = torch.relu(x * SCALE.to(x.device) + 1) * 2 - x
    return torch.equal(y, want) and torch.equal(z, torch.relu(torch.cumsum(want, 0) * 0.5) + x)


@pytest.mark.parametrize("options", [{}, APART], ids=["one engine", "three segments"])
@pytest.mark.parametrize("moving", [False, True], ids=["still", "moving"])
def test_nothing_a_caller_holds_is_overwritten(options: dict[str, Any], moving: bool) -> None:
    run, x, held = compiled(Mixed(), X, **options).module(), values(4, 0), []
    for i in range(12):
        x = values(4, i) if moving else x.copy_(values(4, i))
        held.append((x.clone(), *run(x)))
    assert all(right(*each) for each in held)


def test_large_inputs_and_outputs_that_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_session, "COPIED", 8)
    run = compiled(Mixed(), X).module()
    held = [(x, *run(x)) for x in (values(4, i) for i in range(8))]
    assert all(right(*each) for each in held)


def test_buffers_and_inputs_are_written() -> None:
    run = compiled(Counter(), torch.ones(3), min_block_size=1).module()
    for i in range(1, 8):
        x = torch.ones(3, device="cuda")
        total, after = run(x)
        assert total.tolist() == [2.0 * i] * 3
        assert (x.tolist(), after.tolist()) == ([2.0] * 3, [3.0] * 3)


@pytest.mark.parametrize("default", [False, True], ids=["own stream", "default stream"])
def test_threads_that_allocate_meanwhile(default: bool) -> None:
    """Graphs are recorded while other threads allocate, copy and wait; contexts come to life one after the other."""
    program = compiled(Mixed(), X)

    def work(seed: int) -> None:
        stream = torch.cuda.default_stream() if default and seed % 2 else torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                run = program.module(execution_contexts=2)
                for i in range(20):
                    x = values(4, seed * 13 + i)
                    torch.empty(1 + (seed + i) * 2**20, dtype=torch.uint8, device="cuda")
                    assert right(x, *run(x))

    in_threads(work)


@pytest.mark.parametrize("warm", [0, 1, 5])
def test_a_caller_captures_the_program(warm: int) -> None:
    run, x = compiled(Mixed(), X).module(engine_graphs=False), values(4, 0)
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        for _ in range(warm):
            run(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y, z = run(x)
        for i in range(4):
            x.copy_(values(4, i))
            graph.replay()
            torch.cuda.synchronize()
            assert right(x, y, z)
        assert right(x, *run(x))


@pytest.mark.parametrize("warm", [0, 5])
def test_a_graph_in_a_graph_is_an_error_before_anything_runs(warm: int) -> None:
    run, x = compiled(Mixed(), X).module(), values(4, 0)
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        for _ in range(warm):
            run(x)
        torch.cuda.synchronize()
        with pytest.raises(ExecutionError, match="engine_graphs=False"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            run(x)
        assert right(x, *run(x))


def test_it_can_be_switched_off() -> None:
    program = pipeline.default()(Mixed().eval(), args=(X,))
    x = values(4, 3)
    assert right(x, *program.module(engine_graphs=False)(x))
