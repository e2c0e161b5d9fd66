"""Who runs a call: the pool that hands out workers, and the plans a module finds again."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline import ShapeError
from pipeline.program import Segment
from pipeline.runtime import module as module_file
from pipeline.runtime.call_plan import RunOptions, SegmentRunner
from pipeline.runtime.worker import Pool


@contextmanager
def one(workers: Pool[Any]) -> Iterator[Any]:
    """A worker, given back in the end."""
    worker = workers.take()
    try:
        yield worker
    finally:
        workers.give(worker)


def pool(limit: int) -> Pool[int]:
    numbers = count()
    return Pool(lambda: next(numbers), limit)


def test_one_caller_needs_one_worker() -> None:
    workers = pool(4)
    for _ in range(5):
        with one(workers) as worker:
            assert worker == 0


def test_callers_at_once_have_workers_of_their_own() -> None:
    workers = pool(3)
    with one(workers) as a, one(workers) as b, one(workers) as c:
        assert {a, b, c} == {0, 1, 2}
    with one(workers) as again:
        assert again in {0, 1, 2}


def test_beyond_the_limit_callers_wait() -> None:
    workers, busy, most, lock = pool(2), 0, 0, threading.Lock()

    def call() -> None:
        nonlocal busy, most
        for _ in range(20):
            with one(workers):
                with lock:
                    busy += 1
                    most = max(most, busy)
                time.sleep(0.0005)
                with lock:
                    busy -= 1

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads), "somebody was forgotten"
    assert (busy, most) == (0, 2)


def test_a_worker_that_cannot_be_made_does_not_count() -> None:
    attempts = iter([RuntimeError("no memory"), None])

    def make() -> str:
        error = next(attempts)
        if error is not None:
            raise error
        return "worker"

    workers = Pool(make, 1)
    with pytest.raises(RuntimeError, match="no memory"), one(workers):
        pass
    with one(workers) as worker:
        assert worker == "worker"


def test_a_worker_comes_back_after_an_error() -> None:
    workers = pool(1)
    with pytest.raises(ValueError, match="mine"), one(workers):
        raise ValueError("mine")
    with one(workers) as worker:
        assert worker == 0


class Scaled(torch.nn.Module):
    """A weight, a keyword, a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, *, y: torch.Tensor, factor: int) -> torch.Tensor:
        """[N, 3], [N, 2] -> [N, 2]"""
        return self.linear(x) * factor + y


@pytest.fixture(scope="module")
def scaled() -> Any:
    dim = Dim("n", min=2, max=300)
    inputs = {"y": torch.ones(4, 2), "factor": 3}
    shapes = {"x": {0: dim}, "y": {0: dim}, "factor": None}
    compile = pipeline.default(min_block_size=1)
    return compile(Scaled().eval(), args=(torch.ones(4, 3),), kwargs=inputs, dynamic_shapes=shapes)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was checked."""
    made: list[Any] = []
    bind = module_file.bind_symbols
    monkeypatch.setattr(module_file, "bind_symbols", lambda *a: made.append(1) or bind(*a))
    yield made


def test_a_shape_is_checked_once(scaled: Any, checks: list[Any]) -> None:
    run = scaled.module()
    for n in (4, 4, 5, 4, 5):
        x, y = torch.randn(n, 3), torch.randn(n, 2)
        assert torch.allclose(run(x, factor=3, y=y), run(x, y=y, factor=3))
    assert len(checks) == 2


def test_what_was_wrong_stays_wrong(scaled: Any) -> None:
    run = scaled.module()
    good = {"y": torch.ones(4, 2), "factor": 3}
    run(torch.ones(4, 3), **good)
    for _ in range(2):
        with pytest.raises(ShapeError, match="compiled for"):
            run(torch.ones(301, 3), y=torch.ones(301, 2), factor=3)
        with pytest.raises(TypeError, match="float64"):
            run(torch.ones(4, 3).double(), **good)
        with pytest.raises(TypeError, match="factor is True"):
            run(torch.ones(4, 3), **{**good, "factor": True})
        with pytest.raises(TypeError, match="missing"):
            run(torch.ones(4, 3), y=torch.ones(4, 2))
        with pytest.raises(TypeError, match="not known"):
            run(torch.ones(4, 3), **good, z=1)
        with pytest.raises(TypeError):
            run([torch.ones(4, 3)], **good)
        with pytest.raises(ShapeError):
            run(torch.ones(5, 3), **good)


def test_the_plans_are_bounded(scaled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_file, "PLANS", 3)
    run = scaled.module()
    for n in range(2, 9):
        run(torch.ones(n, 3), y=torch.ones(n, 2), factor=3)
    assert len(run._plans) == 3


def test_threads_share_a_module(scaled: Any) -> None:
    run, model, errors = scaled.module(), Scaled().eval(), list[BaseException]()
    model.load_state_dict(dict(scaled.program.parameters))

    def work(seed: int) -> None:
        try:
            for i in range(10):
                n = 2 + (seed + i) % 5
                x, y = torch.full((n, 3), float(seed)), torch.full((n, 2), float(i))
                with torch.no_grad():
                    torch.testing.assert_close(run(x, y=y, factor=3), model(x, y=y, factor=3))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_a_module_may_be_told_how_to_run(scaled: Any) -> None:
    run = scaled.module(execution_contexts=1, cuda_graphs=True)
    assert (run.settings.execution_contexts, run.settings.cuda_graphs) == (1, True)
    assert not scaled.settings.cuda_graphs
    with pytest.raises(TypeError, match="min_block_size can only be set when compiling"):
        scaled.module(min_block_size=3)
    with pytest.raises(TypeError, match="did you mean 'cuda_graphs'"):
        scaled.module(cuda_graph=True)


@pytest.mark.parametrize("profiles", [(), ((1, 2, 2), (3, 8, 8))])
def test_a_value_is_freed_after_its_last_use(profiles: tuple[tuple[int, ...], ...]) -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            first = x + 1
            for _ in range(16):
                x = torch.cos(x)
            return first, x

    x = torch.rand(8, 4)
    ranges = tuple(tuple((size, 4) for size in sizes) for sizes in profiles)
    given = pipeline.Input(profiles=ranges) if ranges else x
    compile = pipeline.default().replace("partition", pipeline.in_pieces(8))
    module = compile(Chain(), (given,)).module(executor="reference")
    alive, most = list[weakref.ref[torch.Tensor]](), list[int]()

    def watched(segment: Segment, run: SegmentRunner) -> SegmentRunner:
        def call(inputs: list[Any], turn: RunOptions) -> Sequence[Any]:
            outputs = run(inputs, turn)
            alive.extend(map(weakref.ref, outputs))
            most.append(sum(each() is not None for each in alive))
            return outputs

        return call

    module.instrument(watched)
    torch.testing.assert_close(module(x), Chain()(x))
    assert len(most) >= 6 and max(most) <= 3, most


def test_a_call_that_fails_leaves_no_tensors() -> None:
    """Not even until the garbage collector runs, which does not know that a GPU's memory is short."""
    module = pipeline.default()(nn.Linear(4, 4).eval(), (torch.ones(2, 4),)).module(executor="reference")
    inputs = list[weakref.ref[torch.Tensor]]()

    def failing(segment: Segment, run: SegmentRunner) -> SegmentRunner:
        def call(given: list[Any], turn: RunOptions) -> Sequence[Any]:
            inputs.append(weakref.ref(made := given[0] + 1))
            raise torch.OutOfMemoryError(f"no memory for {len(made)} rows")

        return call

    module.instrument(failing)
    gc.disable()
    try:
        for x in (torch.ones(2, 4), torch.ones(2, 4), torch.ones(2, 3)):
            inputs.append(weakref.ref(x))
            try:
                module(x)
            except (torch.OutOfMemoryError, ShapeError):
                del x
        assert len(inputs) == 5 and not any(each() is not None for each in inputs)
    finally:
        gc.enable()
