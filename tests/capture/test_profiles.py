"""Several profiles: given by Input or in the call, kept in files, checked at calls, built into one engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import pipeline
from pipeline.network.description import Profile

NARROW = ((1, 1, 8), (1, 1, 8), (1, 1, 8))
WIDE = ((1, 2, 8), (4, 16, 8), (4, 32, 8))


class Product(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b.mT


def length(low: int, high: int) -> Dim:
    return Dim("length", min=low, max=high)


PROFILES = [({1: 1}, {1: 1}), ({1: length(2, 8)}, {1: length(2, 8)}), {"a": {1: 16}, "b": {1: 16}}]


@pytest.fixture(scope="module")
def compiled() -> pipeline.Compiled:
    x = torch.randn(2, 4, 8)
    return pipeline.default()(Product().eval(), args=(x, x.clone()), profiles=PROFILES)


def test_an_input_has_several_profiles() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    compiled = pipeline.default()(model, args=(pipeline.Input(profiles=[NARROW, WIDE]),))
    (network,) = compiled.networks
    assert network.profiles == (Profile((("input", *NARROW),)), Profile((("input", *WIDE),)))
    assert "profile 1: " in compiled.report() and len(compiled.engines) == 1
    module = compiled.module("reference")
    for shape in ((1, 1, 8), (3, 20, 8)):
        x = torch.randn(*shape)
        torch.testing.assert_close(module(x), model(x))
    with pytest.raises(pipeline.ShapeError, match="one profile"):
        module(torch.randn(3, 1, 8))


def test_profiles_of_the_call_tie_dims_by_name(compiled: pipeline.Compiled) -> None:
    (network,) = compiled.networks
    spans = [{name: (low[1], high[1]) for name, low, _, high in p.ranges} for p in network.profiles]
    assert spans == [{"a": ends, "b": ends} for ends in ((1, 1), (2, 8), (16, 16))]
    assert [p.ranges[0][2][1] for p in network.profiles] == [1, 4, 16], "tuned for the example's size where it fits"
    module = compiled.module("reference")
    for n in (1, 5, 16):
        a, b = torch.randn(2, n, 8), torch.randn(2, n, 8)
        torch.testing.assert_close(module(a, b), a @ b.mT)


@pytest.mark.parametrize("size", [9, 15, 17])
def test_a_call_between_profiles_is_an_error(compiled: pipeline.Compiled, size: int) -> None:
    x = torch.randn(2, size, 8)
    with pytest.raises(pipeline.ShapeError, match=rf"a has size {size} in dimension 1; compiled for 1 to 16"):
        compiled.module("reference")(x, x.clone())


def test_profiles_are_kept(compiled: pipeline.Compiled, tmp_path: Path) -> None:
    compiled.save(tmp_path / "product.trtp")
    loaded = pipeline.load(tmp_path / "product.trtp")
    assert loaded.program.profiles == compiled.program.profiles and len(loaded.program.profiles) == 3
    assert loaded.networks[0].profiles == compiled.networks[0].profiles
    with pytest.raises(pipeline.ShapeError, match="one profile"):
        loaded.module("reference")(torch.randn(2, 9, 8), torch.randn(2, 9, 8))


def test_weights_are_there_once() -> None:
    model = torch.nn.Linear(512, 512).eval()
    one = pipeline.default(min_block_size=1)(model, args=(pipeline.Input(min_shape=(1, 512), max_shape=(9, 512)),))
    ranges = [((n, 512),) * 3 for n in (1, 4, 9)]
    three = pipeline.default(min_block_size=1)(model, args=(pipeline.Input(profiles=ranges),))
    assert three.engines[0].nbytes < 1.5 * one.engines[0].nbytes


@pytest.mark.parametrize(
    ("profiles", "error", "words"),
    [
        ([], ValueError, "one dynamic_shapes for each"),
        ([({1: "n"}, {1: 1})], TypeError, "'n'"),
        ([({1: 4}, {3: 4})], ValueError, "dynamic_shapes for b has dimension 3, but this input has rank 3"),
        ([({1: 4}, {"x": 4})], ValueError, "dynamic_shapes for b has dimension 'x'"),
        ([({1: 4}, (None, 4))], ValueError, "dynamic_shapes for b has 2 entries, but this input has rank 3"),
        ([({1: 4}, 4)], TypeError, "dynamic_shapes for b is an int: pass a dict from dimensions to"),
        ([({1: 1}, {})], ValueError, "profiles give a the size 1 in dimension 1, but its example has 4"),
    ],
)
def test_profiles_that_say_nothing_are_errors(profiles: Any, error: type[Exception], words: str) -> None:
    x = torch.randn(2, 4, 8)
    with pytest.raises(error, match=words):
        pipeline.default()(Product().eval(), args=(x, x.clone()), profiles=profiles)


def test_profiles_are_given_once() -> None:
    x, given = torch.randn(2, 4, 8), pipeline.Input(profiles=[NARROW, WIDE])
    compile = pipeline.default()
    with pytest.raises(TypeError, match="pass only one of these"):
        compile(Product().eval(), args=(x, x.clone()), profiles=PROFILES, dynamic_shapes=({}, {}))
    with pytest.raises(TypeError, match="use only one of them"):
        compile(torch.nn.ReLU(), args=(given,), profiles=[({},)])
    with pytest.raises(ValueError, match="number of profiles, got 2 and 3"):
        compile(Product(), args=(given, pipeline.Input(profiles=[NARROW, NARROW, WIDE])))


def test_an_exported_program_takes_the_profiles_of_inputs() -> None:
    exported = torch.export.export(torch.nn.ReLU(), (torch.randn(2, 4, 8),), dynamic_shapes=({1: Dim("n", max=32)},))
    with pytest.raises(TypeError, match="profiles cannot change an ExportedProgram: pass an Input with profiles"):
        pipeline.capture(exported, (torch.randn(2, 4, 8),), profiles=[({1: 4},)])
    profiles = [((2, 1, 8), (2, 1, 8), (2, 2, 8)), ((2, 4, 8), (2, 4, 8), (2, 8, 8))]
    program = pipeline.capture(exported, (pipeline.Input(profiles=profiles),))
    assert [{(each.min, each.max) for each in profile.values()} for profile in program.profiles] == [{(1, 2)}, {(4, 8)}]


@pytest.mark.parametrize(
    "fields",
    [
        {"profiles": [NARROW], "min_shape": (1, 1, 8)},
        {"profiles": [NARROW, ((1, 2), (1, 2), (1, 2))]},
        {"profiles": [((2, 1, 8), (1, 1, 8), (1, 1, 8))]},
    ],
)
def test_inputs_check_their_profiles(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Input"):
        pipeline.Input(**fields)
    with pytest.raises(TypeError, match="each profile must be"):
        pipeline.Input(profiles=[(1, 2)])  # type: ignore[list-item]


def test_profiles_reach_into_containers() -> None:
    class Sum(torch.nn.Module):
        def forward(self, parts: tuple[torch.Tensor, ...], other: list[torch.Tensor]) -> torch.Tensor:
            return parts[0] + parts[1] + other[0]

    x = torch.randn(2, 4)
    one, few = ({1: n} for n in (1, length(2, 8)))
    profiles = [{"parts": (dim, dim), "other": [dim]} for dim in (one, few)]
    compiled = pipeline.default()(Sum().eval(), args=((x, x.clone()), [x.clone()]), profiles=profiles)
    module = compiled.module("reference")
    for n in (1, 7):
        a, b, c = (torch.randn(2, n) for _ in range(3))
        torch.testing.assert_close(module((a, b), [c]), a + b + c)
