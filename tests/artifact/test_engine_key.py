"""The key of an engine changes with everything that reaches the engine, and with nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

import pipeline
from pipeline.artifact import engine_entry
from pipeline.artifact.engine_cache_stage import engine_requests
from pipeline.network.description import Layer
from pipeline.settings import ENGINE, CompilationSettings
from tests.artifact.key_programs import changed, compare, drawn, renamed
from tests.test_settings import FIELDS


class Model(nn.Module):
    """A function of x and y, and of a weight."""

    def __init__(self, function: Callable[..., Any], width: int = 4, seed: int = 0) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(width, width, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        """[4, 4], [4, 4]"""
        return self.function(x, y, self.weight)


class Renamed(Model):
    """The same with other names for the inputs and the weight."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.kernel = self.weight
        del self.weight

    def forward(self, left: Tensor, right: Tensor) -> Any:
        """[4, 4], [4, 4]"""
        return self.function(left, right, self.kernel)


X, Y = torch.randn(4, 4), torch.randn(4, 4)


def keys(model: nn.Module, args: tuple[Any, ...] = (X, Y), shapes: Any = None, **fields: Any) -> tuple[str, ...]:
    """The keys of a model's engines."""
    compile = pipeline.default(min_block_size=1, **fields).until("convert")
    return tuple(wanted.key for wanted in engine_requests(compile(model.eval(), args, dynamic_shapes=shapes)))


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (lambda x, y, w: (x @ w + y).softmax(0), lambda x, y, w: (x @ w + y).softmax(1)),
    "difference": (lambda x, y, w: (x - y) @ w, lambda x, y, w: (y - x) @ w),
    "bare difference": (lambda x, y, w: x - y, lambda x, y, w: y - x),
    "permute": (lambda x, y, w: (x[None] * y).permute(1, 0, 2), lambda x, y, w: (x[None] * y).permute(1, 2, 0)),
    "alpha": (lambda x, y, w: torch.add(x, y, alpha=2), lambda x, y, w: torch.add(x, y, alpha=3)),
    "alpha 1": (lambda x, y, w: torch.add(x, y), lambda x, y, w: torch.add(x, y, alpha=2)),
    "slope": (lambda x, y, w: nn.functional.elu(x * y, 0.5), lambda x, y, w: nn.functional.elu(x * y, 0.25)),
    "scalar": (lambda x, y, w: x * 2 + y, lambda x, y, w: x * 3 + y),
    "scalar's type": (lambda x, y, w: x + y > 1, lambda x, y, w: (x + y > 1).float()),
    "keepdim": (lambda x, y, w: (x * y).sum(1, keepdim=True), lambda x, y, w: (x * y).sum(1)[None]),
    "slice": (lambda x, y, w: (x * y)[1:3], lambda x, y, w: (x * y)[0:2]),
    "outputs": (lambda x, y, w: (x * y, x + y), lambda x, y, w: (x + y, x * y)),
    "other input": (lambda x, y, w: x.relu(), lambda x, y, w: y.relu()),
    "transposed": (lambda x, y, w: x @ y, lambda x, y, w: x @ y.t()),
    "segments": (
        lambda x, y, w: torch.linalg.svdvals(x * 2).sum() + (x * 2).cumsum(0) - y,
        lambda x, y, w: y - torch.linalg.svdvals(x * 2).sum() + (x * 2).cumsum(0),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_change_to_a_model_changes_the_key(name: str) -> None:
    one, other = PAIRS[name]
    assert keys(Model(one)) != keys(Model(other))
    assert keys(Model(one)) == keys(Renamed(one))


def product(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """A product and a sum."""
    return x @ w + y


def test_shapes_weights_and_ranges_change_the_key() -> None:
    n = {"x": {0: Dim("n", min=2, max=8)}, "y": {0: Dim("n", min=2, max=8)}}
    more = {"x": {0: Dim("n", min=2, max=9)}, "y": {0: Dim("n", min=2, max=9)}}
    two = {"x": {0: Dim("n", min=2, max=8)}, "y": {0: Dim("m", min=2, max=8)}}
    found = {
        "as it is": keys(Model(product)),
        "more rows": keys(Model(product), (torch.randn(5, 4), torch.randn(5, 4))),
        "halves": keys(Model(product).half(), (X.half(), Y.half())),
        "wider": keys(Model(product, 5), (torch.randn(4, 5), torch.randn(4, 5))),
        "other values": keys(Model(product, seed=1)),
        "dynamic": keys(Model(product), shapes=n),
        "wider range": keys(Model(product), shapes=more),
        "other optimum": keys(Model(product), (torch.randn(3, 4), torch.randn(3, 4)), n),
        "two sizes": keys(Model(lambda x, y, w: (x @ w).sum(0) + y), shapes=two),
        "one size": keys(Model(lambda x, y, w: (x @ w).sum(0) + y), shapes=n),
    }
    assert len({*found.values()}) == len(found)


def test_names_of_symbols_do_not_change_the_key() -> None:
    def named(name: str) -> Any:
        size = Dim(name, min=2, max=8)
        return {"x": {0: size}, "y": {0: size}}

    assert keys(Model(product), shapes=named("n")) == keys(Model(product), shapes=named("rows"))
    before = {"left": {0: Dim("a", min=2, max=8)}, "right": {0: Dim("a", min=2, max=8)}}
    assert keys(Renamed(product), shapes=before) == keys(Model(product), shapes=named("n"))


OF_THE_LIBRARY = {"compute_capabilities", "immutable_weights"}


@given(st.fixed_dictionaries({}, optional={name: FIELDS[name] for name in ENGINE if name not in OF_THE_LIBRARY}))
@settings(max_examples=30, deadline=None)
def test_settings_that_reach_the_engine_change_the_key_and_no_others(fields: dict[str, Any]) -> None:
    made, default = drawn(random.Random(1)), CompilationSettings(min_block_size=1)
    changed_settings = default.evolve(**fields)
    assert (made.key(changed_settings) == made.key(default)) == (changed_settings == default)


def test_targets_change_the_key_and_what_runs_a_program_does_not() -> None:
    made, default = drawn(random.Random(1)), CompilationSettings(min_block_size=1)
    found = {made.key(default.evolve(compute_capabilities=c)) for c in ((), ("8.6",), ("8.6", "12.0"))}
    found |= {made.key(default.evolve(immutable_weights=True))}
    assert len(found) == 3
    others = {"cuda_graphs": True, "execution_contexts": 2, "cache_built_engines": True, "engine_cache_size": 7}
    assert {made.key(default.evolve(**{name: value})) for name, value in others.items()} == {made.key(default)}


def test_library_and_tf32_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    made = drawn(random.Random(2))
    found = [made.key()]
    monkeypatch.setattr(engine_entry, "LIBRARY", "tensorrt_rtx 99.0")
    found.append(made.key())
    monkeypatch.undo()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    found.append(made.key())
    assert len({*found}) == 3


REFIT: dict[str, Any] = {"immutable_weights": False}


def test_an_engine_that_can_be_refitted_is_found_by_other_weights_too() -> None:
    found = [keys(Model(lambda x, y, w: x @ w + y * 2, seed=seed), **REFIT) for seed in (0, 1)]
    assert found[0] == found[1]
    assert found[0] != keys(Model(lambda x, y, w: x @ w + y * 3), **REFIT), "a refit does not give numbers of the code"
    assert found[0] != keys(Model(lambda x, y, w: x @ w + y * 2))


def test_how_weights_get_into_an_engine_changes_the_key() -> None:
    forms: list[dict[str, Any]] = [
        {},
        REFIT,
        {"refit_identical_engine_weights": True},
        {"strip_engine_weights": True},
        {"strip_engine_weights": True, **REFIT},
        {"refittable_weights": ("weight",)},
        {"weight_streaming_budget": 0},
    ]
    found = [keys(Model(product), **form) for form in forms]
    assert len({*found}) == len(forms)
    other = [keys(Model(product, seed=1), **form) for form in forms]
    shared = [one == another for one, another in zip(found, other, strict=True)]
    assert shared == [False, True, False, False, True, True, False], "values count where no refit replaces them"
    assert keys(Model(product), weight_streaming_budget=7) == found[-1], "the budget is set when an engine is loaded"
    assert keys(Model(product), refittable_weights=("other",)) == found[0]


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_random_programs_that_differ_in_one_place_have_different_keys(chance: random.Random) -> None:
    one = drawn(chance)
    other, key = changed(chance, one), one.key()
    assert key != other.key()
    assert key == renamed(one).key()


def test_many_pairs() -> None:
    """A sample of ``python -m tests.artifact.key_programs 100000``."""
    assert list(compare(200))[-1] == 200


def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that leaves out operators' arguments, as others' have done."""
    whole = Layer.__str__
    monkeypatch.setattr(Layer, "__str__", lambda row: whole(row).partition(")")[0])
    with pytest.raises(AssertionError):
        list(compare(200))
