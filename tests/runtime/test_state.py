"""The state of a compiled program: names, first values, states beside each other, files, and updates where they lie."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline.runtime.engine_buffers import ALIGNMENT
from pipeline.runtime.state import FlagPool, InitialValue, PositionGuard
from pipeline.trt import CAPABILITIES
from tests.runtime.fake_engine import FakeEngine


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.full((1, 2, 8, 4), 0.5))
        self.register_buffer("length", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: Any = torch.arange(x.shape[2]) + self.length
        self.keys.index_copy_(2, rows, x)  # type: ignore[union-attr, operator]
        self.length.add_(x.shape[2])  # type: ignore[union-attr, operator]
        return self.keys * 2  # type: ignore[operator]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.register_buffer("program", torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.program.add_(1)  # type: ignore[union-attr, operator]
        return sum(layer(x) for layer in self.layers) + self.program  # type: ignore[return-value]


X = torch.arange(24.0).reshape(1, 2, 3, 4)
NAMES = {"program", *(f"layers.{i}.{name}" for i in (0, 1) for name in ("keys", "length"))}


@pytest.fixture(scope="module")
def compiled() -> pipeline.Compiled:
    return pipeline.default()(Model().eval(), args=(X,))


def test_state_has_the_models_names(compiled: pipeline.Compiled) -> None:
    module, model = compiled.module("reference"), Model()
    assert module.state_dict().keys() == NAMES == model.state_dict().keys()
    for _ in range(2):
        torch.testing.assert_close(module(X), model(X))
    torch.testing.assert_close(dict(module.state_dict()), dict(model.state_dict()))
    assert dict(module.named_buffers()).keys() == NAMES
    assert module.program is module.compiled.program, "a buffer's name takes nothing of the module's own"


def test_state_can_be_loaded(compiled: pipeline.Compiled) -> None:
    module, model = compiled.module("reference"), Model()
    model(X)
    module.load_state_dict(model.state_dict())
    torch.testing.assert_close(module(X), model(X))


def test_reset_gives_the_first_values_where_they_lie(compiled: pipeline.Compiled) -> None:
    module = compiled.module("reference")
    places = {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}
    first = module(X)
    module(X)
    with pytest.raises(pipeline.ExecutionError, match=r"outside of the buffer layers\.0\.keys"):
        module(X)
    module.reset()
    assert torch.equal(module(X), first)
    assert {name: tensor.data_ptr() for name, tensor in module.state_dict().items()} == places


def test_states_do_not_see_each_other(compiled: pipeline.Compiled) -> None:
    module = compiled.module("reference")
    first = module(X)
    other = module.new_state()
    assert other._parts is module._parts, "engines and weights are shared"
    assert torch.equal(other(X), first)
    second = module(X)
    assert not torch.equal(second, first) and torch.equal(other(X), second)
    other.reset()
    assert module.state_dict()["layers.1.length"] == 6 and other.state_dict()["layers.1.length"] == 0


def test_state_is_kept_in_files(compiled: pipeline.Compiled, tmp_path: Path) -> None:
    compiled.save(tmp_path / "model.trtp")
    with pytest.warns(pipeline.ArtifactWarning) if not torch.cuda.is_available() else pytest.MonkeyPatch.context():
        loaded = pipeline.load(tmp_path / "model.trtp")
    module, model = loaded.module("reference"), Model()
    for _ in range(2):
        torch.testing.assert_close(module(X), model(X))
    assert module.state_dict().keys() == NAMES
    with pytest.raises(pipeline.ExecutionError, match="positions outside"):
        module(X)


def test_equal_elements_are_kept_as_one() -> None:
    zeros, range_ = InitialValue.from_tensor(torch.zeros(4, 4)), InitialValue.from_tensor(torch.arange(4))
    assert zeros.value.numel() == 1 and range_.value.numel() == 4
    for initial, value in (
        (zeros, torch.zeros(4, 4)),
        (range_, torch.arange(4)),
        (InitialValue.from_tensor(torch.tensor(2)), None),
    ):
        expected = torch.tensor(2) if value is None else value
        assert torch.equal(initial.new_tensor(torch.device("cpu")), expected)


def test_a_guard_of_a_gpu_tells_the_next_call() -> None:
    guard = PositionGuard(torch.device("cpu"), "keys")
    guard.on_gpu = True  # what it does there, on memory of the CPU
    guard.add_result(torch.tensor(False))
    guard.check()
    guard.add_result(torch.tensor(True))
    guard.add_result(torch.tensor(False))
    with pytest.raises(pipeline.ExecutionError, match="an earlier call has positions outside of the buffer keys"):
        guard.check()


@pytest.mark.skipif(not CAPABILITIES.kv_cache_update, reason="this TensorRT has no cache update")
def test_an_engine_updates_what_it_is_given_to_hold() -> None:
    from tests.runtime.test_engine_runner import Driven

    engine = FakeEngine(
        {"cache": ("float32", (64,))}, {"new": ("float32", (64,))}, lambda cache: [cache + 1], alias={"new": "cache"}
    )
    run = Driven(engine, updated=frozenset({0}))
    memory = torch.zeros(3 * ALIGNMENT)
    start = -memory.data_ptr() % ALIGNMENT // 4
    cache, other = memory[start : start + 64], memory[start + ALIGNMENT : start + ALIGNMENT + 64]
    for _ in range(2):
        (new,) = run.run([cache])
        assert new is cache
        assert run.context.addresses["new"] == run.context.addresses["cache"] == cache.data_ptr()
    (new,) = run.run([other])
    assert new is other and run.context.addresses["new"] == other.data_ptr()
    with pytest.raises(pipeline.ExecutionError, match="aligned"):
        run.run([memory[start + 1 : start + 65]])


def test_models_are_left_as_they_are() -> None:
    model = Model().eval()
    before = copy.deepcopy(model.state_dict())
    pipeline.default()(model, args=(X,)).module("reference")(X)
    torch.testing.assert_close(dict(model.state_dict()), dict(before))


def test_a_flag_that_is_given_back_is_taken_last() -> None:
    flags = FlagPool()
    first = flags.take()
    first.fill_(True)
    flags.give(first)
    others = [flags.take() for _ in range(FlagPool.PAGE)]
    assert first.data_ptr() not in {other.data_ptr() for other in others}
    assert len({other.data_ptr() for other in others}) == FlagPool.PAGE
    again = [flags.take() for _ in range(4 * FlagPool.PAGE)]
    [same] = [flag for flag in again if flag.data_ptr() == first.data_ptr()]
    assert not same
