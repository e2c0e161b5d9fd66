"""Sessions that take turns in one execution context, on a fake engine: each computes as if it had its own."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pipeline import ExecutionError
from pipeline.network.description import Profile
from pipeline.runtime.engine_buffers import ActivationMemory
from pipeline.runtime.engine_context import Contexts
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.engine_session import EngineSession
from tests.runtime.fake_engine import CPU, FakeEngine, FakeStream

ROWS = Profile((("x", (0, 3), (2, 3), (5, 3)),))


def layer(**options: Any) -> FakeEngine:
    """x[n, 3] * weight + number, and the cache with x's sum added to it where it lies."""
    return FakeEngine(
        {"x": ("float32", (-1, 3)), "w": ("float32", (3,)), "n": ("int64", ()), "cache": ("float32", (3,))},
        {"y": ("float32", (-1, 3)), "updated": ("float32", (3,))},
        lambda x, w, n, cache: [x * w + n, cache + x.sum(0)],
        alias={"updated": "cache"},
        profile=ROWS,
        **options,
    )


class Layers:
    """Sessions over one engine, with weights and a cache each."""

    def __init__(self, engine: FakeEngine, count: int, contexts: Contexts | None) -> None:
        self.stream: Any = FakeStream(engine.calls)
        self.weights = [torch.full((3,), float(i + 1)) for i in range(count)]
        self.caches = [_aligned(3) for _ in range(count)]
        arena, known = ActivationMemory(CPU), {"updated": frozenset({3}), "fixed": frozenset({1})}
        loaded = LoadedEngine(engine, engine.network)  # type: ignore[arg-type]
        self.sessions = [EngineSession(loaded, self.stream, arena, contexts=contexts, **known) for _ in range(count)]

    def run(self, index: int, x: torch.Tensor, number: int, **options: Any) -> torch.Tensor:
        given = [x, self.weights[index], torch.tensor(number), self.caches[index]]
        return self.sessions[index](given, self.stream, **options)[0].clone()


def _aligned(size: int) -> torch.Tensor:
    """Zeros where TensorRT takes them."""
    memory = torch.zeros(size + 64)
    start = -memory.data_ptr() % 256 // 4
    return memory[start : start + size]


turns = st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(-2, 2), st.booleans(), st.booleans())


@given(st.lists(turns, min_size=1, max_size=12), st.sampled_from([(), ("n",)]), st.sampled_from([(), ("y",)]))
def test_turns_in_one_context_give_what_contexts_apart_give(
    calls: list[tuple[int, int, int, bool, bool]], host: tuple[str, ...], open: tuple[str, ...]
) -> None:
    together, apart = layer(host=host, open=open), layer(host=host, open=open)
    shared, alone = Layers(together, 3, Contexts()), Layers(apart, 3, None)
    assert len({id(s.context) for s in shared.sessions}) == (3 if host else 1), "inputs in host memory decide shapes"
    assert len({id(s.context) for s in alone.sessions}) == 3
    for index, rows, number, own, loose in calls:
        x = torch.arange(3.0 * rows).reshape(rows, 3) + number
        given = {"reuse_outputs": own, "in_place": loose and not host}
        assert torch.equal(shared.run(index, x, number, **given), alone.run(index, x, number, **given))
        for ours, theirs in zip(shared.caches, alone.caches, strict=True):
            assert torch.equal(ours, theirs)


def test_only_what_differs_is_set_when_the_turn_changes() -> None:
    engine = layer()
    layers = Layers(engine, 2, Contexts())
    for _ in range(3):
        for index in range(2):
            layers.run(index, torch.ones(2, 3), 1)
    engine.calls.clear()
    layers.run(0, torch.ones(2, 3), 1)
    told = [call for call in engine.calls if call[0] != "set_device_memory"]
    addresses = {name for kind, name in told[:-1] if kind == "set_tensor_address"}
    assert addresses == {"x", "w", "n", "y", "cache", "updated"}
    assert [call[0] for call in told].count("set_tensor_address") == len(addresses)
    assert not [call for call in told if call[0] in ("set_input_shape", "infer_shapes")]
    engine.calls.clear()
    layers.run(0, torch.ones(2, 3), 1)
    assert [call[0] for call in engine.calls] == ["execute_async_v3"], "the turn did not change"


def test_a_session_whose_turn_failed_sets_all_again() -> None:
    engine = layer()
    layers = Layers(engine, 2, Contexts())
    want = layers.run(0, torch.ones(2, 3), 1)
    layers.run(1, torch.ones(2, 3), 1)
    engine.refuse.add("set_tensor_address")
    with pytest.raises(ExecutionError, match="refused the address"):
        layers.run(0, torch.ones(2, 3), 1)
    engine.refuse.clear()
    assert torch.equal(layers.run(1, torch.ones(2, 3), 1), 2 * torch.ones(2, 3) + 1)
    assert torch.equal(layers.run(0, torch.ones(2, 3), 1), want)


def test_profiles_and_graphs_have_contexts_of_their_own() -> None:
    engine = FakeEngine({"x": ("float32", (2, 3))}, {"y": ("float32", (2, 3))}, lambda x: [x + 1])
    loaded, contexts, arena = LoadedEngine(engine, engine.network), Contexts(), ActivationMemory(CPU)  # type: ignore[arg-type]
    stream: Any = FakeStream(engine.calls)
    ways = [(0, False), (0, False), (1, False), (0, True), (0, True)]
    made = [
        EngineSession(loaded, stream, arena, profile=place, engine_graph=graph, contexts=contexts)
        for place, graph in ways
    ]
    first, same, other, *graphs = (session.context for session in made)
    assert first is same and len({id(each) for each in (first, other, *graphs)}) == 4


def test_errors_name_the_engine_whose_turn_it_is() -> None:
    engine, contexts = layer(), Contexts()
    named = [LoadedEngine(engine, evolve(engine.network, name=name)) for name in ("first", "second")]  # type: ignore[arg-type]
    stream: Any = FakeStream(engine.calls)
    first, second = (EngineSession(loaded, stream, ActivationMemory(CPU), contexts=contexts) for loaded in named)
    given = [torch.ones(2, 3), torch.ones(3), torch.tensor(1), _aligned(3)]
    for session in (first, second, first):
        session(given, stream)
    engine.refuse.add("execute_async_v3")
    for session, name in ((second, "second"), (first, "first")):
        with pytest.raises(ExecutionError, match=f"{name}: TensorRT refused to run"):
            session(given, stream)


def test_a_context_dies_before_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[str] = []
    engine = layer()
    make = engine.create_execution_context

    def watched(runtime_config: Any) -> Any:
        made = make(runtime_config)
        weakref.finalize(runtime_config, died.append, "configuration")
        weakref.finalize(made, died.append, "context")
        return made

    monkeypatch.setattr(engine, "create_execution_context", watched)
    layers = Layers(engine, 2, Contexts())
    layers.run(0, torch.ones(2, 3), 1)
    del layers
    assert died == ["context", "configuration"]
