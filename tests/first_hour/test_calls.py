"""A compiled program is called as the model is: keywords for positions, and defaults left out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import pipeline

X, MASK = torch.linspace(-1, 1, 32).reshape(4, 8), torch.ones(4, 4) / 2


class Scaled(nn.Module):
    """A model with defaults of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Any, scale: float = 2.0, flag: bool = True, *, mask: Any = None, nothing: Any = float("nan")):
        """[4, 8] -> [4, 4]"""
        x = x["x"] if isinstance(x, dict) else x
        y = self.linear(x) * scale
        y = y if mask is None else y * mask
        return y if flag else -y


@pytest.fixture(scope="module")
def net() -> Scaled:
    torch.manual_seed(0)
    return Scaled().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def programs(net: Scaled, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, pipeline.Compiled]:
    """The model compiled in several forms; one was saved and loaded, one exported before, one scripted."""
    compile = pipeline.default(min_block_size=1)
    path = tmp_path_factory.mktemp("calls") / "saved.trtp"
    plain = compile(net, (X,))
    plain.save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded, script = pipeline.load(path), torch.jit.script(Positional(net.linear).eval())
    return {
        "plain": plain,
        "loaded": loaded,
        "default given": compile(net, (X, 2.0)),
        "other value": compile(net, (X, 3.0)),
        "keywords": compile(net, (), {"mask": MASK, "x": X, "nothing": float("nan")}),
        "in a dict": compile(net, ({"x": X},)),
        "container by keyword": compile(net, (), {"x": {"x": X}}),
        "exported": compile(torch.export.export(net, (X,), {"mask": MASK})),
        "scripted": compile(script, (X,)),
    }


class Positional(nn.Module):
    """What TorchScript takes."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        """[4, 8] -> [4, 4]"""
        return self.linear(x) * scale


NAN = float("nan")
CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "plain": [((X,), {}), ((), {"x": X}), ((X, 2.0), {}), ((X, 2.0, True), {}), ((X,), {"scale": 2.0, "mask": None})],
    "loaded": [((), {"x": X}), ((X, 2.0), {"flag": True, "nothing": NAN})],
    "default given": [((X,), {}), ((X,), {"scale": 2.0}), ((), {"scale": 2.0, "x": X}), ((X, 2.0, True), {})],
    "other value": [((X, 3.0), {}), ((), {"scale": 3.0, "x": X})],
    "keywords": [((X,), {"mask": MASK}), ((X, 2.0, True), {"mask": MASK}), ((), {"mask": MASK, "x": X})],
    "in a dict": [(({"x": X},), {}), ((), {"x": {"x": X}, "scale": 2.0})],
    "exported": [((X,), {"mask": MASK}), ((), {"mask": MASK, "x": X})],
    "container by keyword": [(({"x": X},), {}), ((), {"x": {"x": X}})],
    "scripted": [((X,), {}), ((), {"x": X}), ((X,), {"scale": 2.0})],
}


@pytest.mark.parametrize("form", CALLS)
def test_calls_that_the_model_takes(form: str, programs: Mapping[str, pipeline.Compiled], net: Scaled) -> None:
    for args, kwargs in CALLS[form]:
        torch.testing.assert_close(programs[form](*args, **kwargs), net(*args, **kwargs))


REFUSED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str]] = {
    "another value of a default": ("plain", (X, 3.0), {}, r"scale cannot be passed, .* its default, 2\.0: compile"),
    "another type of a default": ("plain", (X, 2), {}, r"input scale cannot be passed"),
    "a tensor for None": ("loaded", (X,), {"mask": MASK}, "input mask cannot be passed, .* default, None"),
    "a default that is not compiled": ("other value", (X,), {}, r"missing, and its default is 2\.0, .* for 3\.0"),
    "a tensor left out": ("keywords", (X,), {}, "input mask is missing, and its default is None"),
    "a container left out": ("in a dict", (), {}, "called with no positional inputs"),
    "no input": ("plain", (), {}, "compiled for 1 positional input"),
    "twice": ("default given", (X,), {"x": X}, "input x is given twice"),
    "an unknown name": ("plain", (X,), {"y": X}, "not known: y"),
    "too many": ("plain", (X, 2.0, True, None), {}, "called with 4 positional inputs"),
}


@pytest.mark.parametrize(("form", "args", "kwargs", "said"), REFUSED.values(), ids=REFUSED)
def test_calls_that_differ_from_the_compiled_one(
    form: str, args: tuple[Any, ...], kwargs: dict[str, Any], said: str, programs: Mapping[str, pipeline.Compiled]
) -> None:
    with pytest.raises(TypeError, match=said):
        programs[form](*args, **kwargs)


def test_a_graph_of_cuda_has_the_same_signature(net: Scaled) -> None:
    program = pipeline.capture(net, (X,), device="cuda")
    assert [p.name for p in program.signature] == ["x", "scale", "flag", "mask", "nothing"]
    assert [p.positional for p in program.signature] == [True, True, True, False, False]


METHODS = {
    "eval": "compiled(x)",
    "train": "inference",
    "to": "compiled.module",
    "cuda": "compiled.module",
    "half": 'precision="float16"',
    "parameters": "compiled.program.parameters",
    "state_dict": "compiled.module().state_dict()",
    "forward": "compiled(x)",
    "generate": "compile_for_generation",
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_modules_say_what_to_use(method: str, programs: Mapping[str, pipeline.Compiled]) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(programs["plain"], method)
    assert METHODS[method] in str(caught.value) and f".{method}" in str(caught.value)
    assert not hasattr(programs["plain"], "no_such_thing")


def test_a_program_prints_what_it_holds(programs: Mapping[str, pipeline.Compiled]) -> None:
    assert re.fullmatch(r"1 engine, 2 of 2 operators, \d+\.\d kB", text := str(programs["plain"]))
    assert repr(programs["plain"]) == f"<Compiled: {text}>"
