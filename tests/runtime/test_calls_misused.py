"""Compiled programs called, copied and refitted carelessly: errors name the input or weight, and nothing changes."""

from __future__ import annotations

import collections
import copy
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import pipeline

X = torch.ones(2, 4)
refit = pipeline.refit_module_weights


class Pair(nn.Module):
    """A product of one input, scaled by others."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x: torch.Tensor, by: dict[str, Any], factor: Any = None) -> torch.Tensor:
        """[N, 4], {a: [N, 4], b: [number]} -> [N, 4]"""
        return self.layer(x) * by["a"] * by["b"][0]


@cache
def compiled(*factor: Any, keyword: bool = False) -> pipeline.Compiled:
    torch.manual_seed(0)
    given = {"a": X, "b": [2.0]}
    args, kwargs = ((X,), {"by": given}) if keyword else ((X, given, *factor), {})
    return pipeline.default()(Pair().eval(), args, kwargs)


BY = {"a": X, "b": [2.0]}
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (
        lambda: compiled()(),
        "no positional inputs and no keywords; .* for 2 positional inputs",
    ),
    "one more": (
        lambda: compiled()(X, BY, X),
        "factor cannot be passed, as the program was compiled for its default, None",
    ),
    "a key less": (lambda: compiled()(X, {"a": X}), r"positional input 1 has the keys \['a'\], not \['a', 'b'\]"),
    "one more in a list": (lambda: compiled()(X, {"a": X, "b": [2.0, 2.0]}), r"input 1\['b'\] has 2 elements, not 1"),
    "a tensor for a dict": (lambda: compiled(keyword=True)(X, by=X), "^by is a Tensor, expected a dict"),
    "a tuple for a list": (lambda: compiled()(X, {"a": X, "b": (2.0,)}), r"input 1\['b'\] is a tuple, expected a list"),
    "a list for a tensor": (lambda: compiled()([[1.0]], BY), "input x is a list, expected a tensor"),
    "another number": (lambda: compiled()(X, {"a": X, "b": [3.0]}), r"is 3\.0, but the program .* for the value 2\.0"),
    "a tensor for None": (
        lambda: compiled(None)(X, BY, X),
        r"factor is a tensor, float32\[2, 4\], .* None",
    ),
    "a long string": (lambda: compiled("a")(X, BY, "b " * 100), r"factor is .{1,80}\[\.\.\.\], but the program"),
    "no value": (lambda: compiled()(X.to("meta"), BY), "input x is on the meta device, without values: pass"),
    "a module pickled": (
        lambda: pickle.dumps(compiled().module()),
        r"call compiled\.module\(\) again",
    ),
    "a module copied": (
        lambda: copy.deepcopy(compiled().module()),
        r"call compiled\.module\(\) again",
    ),
    "refitted with nothing": (lambda: refit(compiled(), None), "new_weights is None"),
    "refitted with itself": (
        lambda: refit(compiled(), compiled()),
        "new_weights is a Compiled",
    ),
}


@pytest.mark.parametrize("call, says", CALLS.values(), ids=CALLS)
def test_misuse_is_a_type_error_that_says_what_is_due(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call()


def test_keys_may_come_in_any_order_and_in_any_dict() -> None:
    expected = compiled()(X, BY)
    for by in ({"b": [2.0], "a": X}, collections.OrderedDict(b=[2.0], a=X), collections.defaultdict(None, BY)):
        assert torch.equal(compiled()(X, by), expected)


def test_not_a_number_is_itself() -> None:
    assert compiled(float("nan"))(X, BY, float("nan")).isfinite().all()


@pytest.mark.parametrize("executor", ["refrence", "cuda", True])
def test_an_executor_that_is_none_is_named(executor: Any) -> None:
    with pytest.raises(ValueError, match=r"executor must be one of None, 'tensorrt', 'reference', got"):
        compiled().module(executor=executor)


def test_a_compiled_program_is_its_own_copy() -> None:
    assert copy.copy(compiled()) is copy.deepcopy(compiled()) is compiled()


WEIGHTS: dict[str, tuple[Callable[[], Any], str]] = {
    "an array": (lambda: torch.zeros(4, 4).numpy(), "its value is an ndarray: expected a torch.Tensor"),
    "a number": (lambda: 3, "its value is an int: expected a torch.Tensor"),
    "no value": (lambda: torch.zeros(4, 4, device="meta"), "its new value is on the meta device"),
    "a sparse tensor": (
        lambda: torch.eye(4).to_sparse(),
        "its layout is torch.sparse_coo, and the engine needs torch.strided",
    ),
}


@pytest.mark.parametrize("make, says", WEIGHTS.values(), ids=WEIGHTS)
def test_what_is_no_weight_is_named(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(pipeline.RefitError) as caught:
        refit(compiled(), {"layer.weight": make()})
    assert says in caught.value.weights["layer.weight"]
    assert "compiled.program.parameters" in caught.value.hint


@pytest.mark.parametrize("other", [nn.Conv2d(3, 3, 3), nn.ReLU()], ids=["other names", "no names"])
def test_a_module_of_another_architecture_refits_nothing(other: nn.Module) -> None:
    with pytest.raises(pipeline.RefitError) as caught:
        refit(compiled(), other)
    assert {*caught.value.weights} == {"layer.weight", "layer.bias", *other.state_dict()}


def test_weights_in_float64_are_truncated_too() -> None:
    model, x = nn.Linear(4, 4).double().eval(), X.double()
    program = pipeline.default(truncate_double=True)(model, (x,))
    torch.testing.assert_close(program.module(executor="reference")(x), model(x), rtol=1e-5, atol=1e-6)


class Sparse(nn.Module):
    """A product with a sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.eye(4).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4, 4] -> [4, 4]"""
        return torch.sparse.mm(self.w, x) + 1


def test_what_is_sparse_stays_in_pytorch() -> None:
    x = torch.randn(4, 4)
    assert torch.equal(pipeline.default()(Sparse().eval(), (x,)).module(executor="reference")(x), x + 1)
    y = torch.eye(4).to_sparse()
    given = pipeline.default()(nn.ReLU().eval(), (y,)).module(executor="reference")(y)
    assert torch.equal(given.to_dense(), torch.eye(4))


def test_a_sparse_tensor_is_no_dense_one() -> None:
    module = pipeline.default()(nn.ReLU().eval(), (X,)).module(executor="reference")
    for _ in range(2):
        with pytest.raises(TypeError, match=r"has layout torch\.sparse_coo, expected torch\.strided"):
            module(X.to_sparse())
        assert torch.equal(module(X), X)


class Viewed(nn.Module):
    """Sizes are an input."""

    def forward(self, x: torch.Tensor, shape: Any) -> torch.Tensor:
        """[2, 4] -> shape"""
        return x.view(shape["to"]) * 2


def test_a_size_is_a_tuple() -> None:
    module = pipeline.default()(Viewed().eval(), (X, {"to": torch.Size([4, 2])})).module(executor="reference")
    for shape in (torch.Size([4, 2]), (4, 2)):
        assert torch.equal(module(X, {"to": shape}), X.view(4, 2) * 2)
    with pytest.raises(TypeError, match="compiled for the value 4"):
        module(X, {"to": torch.Size([2, 4])})


def test_a_bool_is_no_size() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            """The first rows."""
            return x[:n] * n

    n = torch.export.Dim.DYNAMIC(min=1, max=8)
    call = pipeline.compile(Rows(), (torch.ones(8, 4), 3), dynamic_shapes={"x": None, "n": n})
    assert torch.equal(call(torch.ones(8, 4), 1), torch.ones(1, 4))
    with pytest.raises(TypeError, match="input n is True, expected an int"):
        call(torch.ones(8, 4), True)
