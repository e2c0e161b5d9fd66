"""Refitting an engine, on a fake refitter: what is supplied, and what is said about weights that are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import nn

import pipeline
from pipeline import Compiled, RefitError
from pipeline.network.engine import Engine
from pipeline.runtime import engine_refit
from pipeline.runtime.engine_load import LIBRARY
from pipeline.runtime.engine_refit import refit, supply_weights
from pipeline.runtime.program_engines import set_weight_streaming_budget
from pipeline.trt import dtype_name, to_trt, trt
from tests.runtime.fake_engine import say

ENGINE = Engine("engine_0", b"old plan", LIBRARY, refittable=True)
A, B = torch.ones(2, 3), torch.zeros(4)


class Fake:
    """An engine with weights, and its refitter."""

    def __init__(self, **held: tuple[int, torch.dtype]) -> None:
        self.held, self.given = held, dict[str, Any]()
        self.missing: list[str] = []
        self.works, self.plan = True, b"new plan"
        self.flags = {"EXCLUDE_WEIGHTS"}

    def get_all_weights(self) -> list[str]:
        return list(self.held)

    def set_named_weights(self, name: str, weights: Any) -> bool:
        """Takes another dtype silently, as RTX 1.4 does."""
        taken: bool = weights.size == self.held[name][0]
        if taken:
            self.given[name] = weights
        return taken

    def get_weights_prototype(self, name: str) -> Any:
        count, dtype = self.held[name]
        return SimpleNamespace(size=count, dtype=to_trt(dtype))

    def get_missing_weights(self) -> list[str]:
        return self.missing

    def refit_cuda_engine(self) -> bool:
        if not self.works:
            say("fake refit error")
        return self.works

    def create_serialization_config(self) -> Any:
        names = {name: flag for flag, name in ((f, f.name) for f in trt.SerializationFlag.__members__.values())}
        assert {"EXCLUDE_WEIGHTS", "INCLUDE_REFIT"} <= set(names)
        return SimpleNamespace(
            set_flag=lambda flag: self.flags.add(flag.name), clear_flag=lambda flag: self.flags.discard(flag.name)
        )

    def serialize_with_config(self, config: Any) -> bytes | None:
        return self.plan


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(a=(6, torch.float32), b=(4, torch.float32))
    monkeypatch.setattr(engine_refit, "load", lambda engine: made)
    monkeypatch.setattr(trt, "Refitter", lambda loaded, log: loaded)
    return made


def test_a_new_engine_with_weights_and_refittable(fake: Fake) -> None:
    result = refit(ENGINE, {"a": A, "b": B})
    assert (bytes(result), result.refittable, result.name) == (b"new plan", True, "engine_0")
    assert result.digest != ENGINE.digest and bytes(ENGINE) == b"old plan"
    assert fake.flags == {"INCLUDE_REFIT"}
    assert set(fake.given) == {"a", "b"}


def test_weights_are_contiguous_and_float32_for_float64(fake: Fake) -> None:
    refit(ENGINE, {"a": A.double().t(), "b": B})
    assert dtype_name(fake.given["a"].dtype) == "float32"


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"a": A, "b": B, "c": B}, {"c": "TensorRT folded it into the engine or dropped it, so it cannot be replaced"}),
        ({"a": A[:1], "b": B}, {"a": "TensorRT refused float32[1, 3]; the engine holds 6 x float32"}),
        ({"a": A.half(), "b": B}, {"a": "TensorRT refused float16[2, 3]; the engine holds 6 x float32"}),
    ],
)
def test_refused_weights_are_named(fake: Fake, weights: Mapping[str, torch.Tensor], reason: dict[str, str]) -> None:
    with pytest.raises(RefitError) as info:
        refit(ENGINE, weights)
    assert info.value.weights == reason


def test_what_has_not_changed_may_be_refused(fake: Fake) -> None:
    refit(ENGINE, {"a": A, "b": B, "positions": torch.arange(3)}, changed={"a"})
    assert set(fake.given) == {"a", "b"}


def test_nothing_to_refit_leaves_the_engine(fake: Fake) -> None:
    assert refit(ENGINE, {"positions": torch.arange(3)}, changed=()) is ENGINE


def test_a_changed_weight_that_is_not_given_is_named(fake: Fake) -> None:
    with pytest.raises(RefitError) as info:
        refit(ENGINE, {"a": A}, changed={"z"})
    assert info.value.weights == {"z": "the engine's network has no such weight"}


def test_missing_weights_are_named(fake: Fake) -> None:
    fake.missing = ["b", ""]
    with pytest.raises(RefitError) as info:
        refit(ENGINE, {"a": A})
    assert set(info.value.weights) == {"b", "a weight without a name"}
    assert "combined" in info.value.weights["b"]


def test_failures_have_tensorrts_words(fake: Fake) -> None:
    fake.works = False
    with pytest.raises(RefitError, match=r"TensorRT refused to refit engine_0 \(fake refit error"):
        refit(ENGINE, {"a": A, "b": B})
    fake.works, fake.plan = True, None  # type: ignore[assignment]
    with pytest.raises(RefitError, match="could not be serialized"):
        refit(ENGINE, {"a": A, "b": B})


def test_an_engine_with_fixed_weights_says_so() -> None:
    with pytest.raises(RefitError, match="a: engine_0 was built with immutable_weights=True"):
        refit(attrs.evolve(ENGINE, refittable=False), {"a": A})


class Scaled(nn.Module):
    """A matmul, a literal, and a buffer of ints."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("places", torch.arange(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 4] -> [2, 4]"""
        return (x @ self.weight) * 2.5 + self.places


Calls = list[tuple[dict[str, torch.Tensor], set[str]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The weights and the names of the changed ones that `refit_module_weights` hands on, as if there were a GPU."""
    seen: Calls = []

    def record(engine: Engine, weights: dict[str, torch.Tensor], changed: set[str]) -> Engine:
        seen.append((weights, changed))
        return engine

    monkeypatch.setattr("pipeline.artifact.refit.has_gpu", lambda: True)
    monkeypatch.setattr("pipeline.artifact.refit.refit", record)
    return seen


def refittable(model: nn.Module) -> Compiled:
    compiled = pipeline.default(min_block_size=1)(model.eval(), args=(torch.randn(2, 4),))
    return attrs.evolve(compiled, engines=tuple(attrs.evolve(e, refittable=True) for e in compiled.engines))


def test_literals_are_supplied_and_only_what_moved_is_changed(calls: Calls) -> None:
    model = Scaled()
    compiled = refittable(model)
    pipeline.refit_module_weights(compiled, {"weight": torch.zeros(4, 4), "places": torch.arange(4)})
    ((weights, changed),) = calls
    assert changed == {"weight"}
    assert torch.equal(weights["weight"], torch.zeros(4, 4))
    assert set(weights) == {w.name for w in compiled.networks[0].weights} > {"weight", "places"}


def test_a_model_trained_since_counts_as_changed(calls: Calls) -> None:
    model = Scaled()
    compiled = refittable(model)
    with torch.no_grad():
        model.weight.add_(1)
    pipeline.refit_module_weights(compiled, model)
    assert calls[0][1] == {"weight"}


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda weight: weight.data.add_(1),
    "assigned": lambda weight: setattr(weight, "data", torch.zeros(4, 4)),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_that_torch_does_not_count_are_refitted(calls: Calls, write: str) -> None:
    """The program has the model's own tensors, with their new values; engines have the old ones."""
    model = Scaled()
    compiled = refittable(model)
    WRITES[write](model.weight)
    new = pipeline.refit_module_weights(compiled, model.state_dict())
    ((weights, changed),) = calls
    assert not changed  # it is not known: TensorRT may have folded the others
    assert torch.equal(weights["weight"], model.weight)
    pipeline.refit_module_weights(new, model)
    assert len(calls) == 1


def test_an_engine_without_weights_is_given_those_of_its_network(fake: Fake) -> None:
    stripped = attrs.evolve(ENGINE, stripped=True, weights={"ours": "a"})
    supply_weights(stripped, fake, {"ours": A, "b": B, "folded": B})
    assert set(fake.given) == {"a", "b"}
    with pytest.raises(RefitError, match="no such weight"):
        supply_weights(stripped, fake, {"b": B})
    fake.works = False
    with pytest.raises(RefitError, match="fake refit error"):
        supply_weights(stripped, fake, {"ours": A, "b": B})


def test_a_plan_with_other_names_is_refitted_by_them(fake: Fake) -> None:
    renamed = attrs.evolve(ENGINE, weights={"ours": "a"})
    refit(renamed, {"ours": A, "b": B}, changed={"ours"})
    assert set(fake.given) == {"a", "b"}


class Streaming:
    """An engine whose weights can be streamed, down to a least budget."""

    def __init__(self, size: int, least: int = 0) -> None:
        self.streamable_weights_size, self.least, self.budget = size, least, size

    @property
    def weight_streaming_budget_v2(self) -> int:
        """What was set last and taken."""
        return self.budget

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, value: int) -> None:
        self.budget = value if value >= self.least else self.budget


def test_a_budget_for_weights_is_set_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    loaded: Any = Streaming(1000)
    set_weight_streaming_budget("engine_0", loaded, 300)
    assert loaded.budget == 300
    set_weight_streaming_budget("engine_0", loaded, 5000)
    assert loaded.budget == 1000
    with pytest.raises(pipeline.ExecutionError, match="1000 bytes of weights"):
        set_weight_streaming_budget("engine_0", Streaming(1000, least=500), 300)  # type: ignore[arg-type]
    set_weight_streaming_budget("engine_0", Streaming(0), 300)  # type: ignore[arg-type]
    assert "no weights of engine_0 can be streamed" in caplog.text
