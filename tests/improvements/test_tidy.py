"""duplicates, casts, layouts: nothing is computed twice, what undoes itself is not done, outputs stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

from pipeline.improvements.tidy import WIDENS
from tests.improvements.programs import agree, decomposed, improved, targets

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        """Whatever the function says."""
        return self.function(x)


def after(function: Callable[[torch.Tensor], Any], *passes: str, x: torch.Tensor = X, dynamic: Any = None) -> list[str]:
    """The operators that are left of a function, whose values have not changed."""
    program = decomposed(Of(function), x, dynamic_shapes=dynamic)
    result = improved(program, *passes)
    agree(program, result, x)
    return targets(result)


def test_equal_calls_are_made_once() -> None:
    assert after(lambda x: x.exp() * x.exp() + (x.exp() * x.exp()).relu(), "duplicates") == [
        "exp.default",
        "mul.Tensor",
        "relu.default",
        "add.Tensor",
    ]
    assert after(lambda x: x.split(1, 1)[0] + x.split(1, 1)[0], "duplicates").count("split.Tensor") == 1


def test_what_differs_in_type_or_order_is_not_equal() -> None:
    assert after(lambda x: (x + 1) * (x + 1.0), "duplicates").count("add.Tensor") == 2
    assert after(lambda x: (x.relu() - x) * (x - x.relu()), "duplicates").count("sub.Tensor") == 2
    assert (
        after(lambda x: x.amax(1, keepdim=True) + x.amax(1, keepdim=False)[:, None], "duplicates").count("amax.default")
        == 2
    )


def test_random_numbers_are_drawn_as_often_as_before() -> None:
    program = decomposed(Of(lambda x: torch.rand_like(x) - torch.rand_like(x)), X)
    assert str(improved(program, "duplicates")) == str(program)


OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "twice": lambda x: (x.exp(), x.exp()),
    "a copy": lambda x: (x.exp().clone(), x.exp()),
    "the input's copy": lambda x: x.clone(),
    "an identity": lambda x: x.permute(0, 2, 1).permute(0, 2, 1).clone(),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_tensors_of_their_own(name: str) -> None:
    program = decomposed(Of(OUTPUTS[name]), X)
    results = improved(program, "casts", "duplicates", "layouts").graph.output_node().args[0]
    assert len({id(n) for n in results}) == len(results)
    assert all(n.op == "call_function" for n in results)


@given(first=st.sampled_from(sorted(WIDENS, key=str)), data=st.data())
def test_a_cast_there_and_back_vanishes(first: torch.dtype, data: st.DataObject) -> None:
    wide = data.draw(st.sampled_from(sorted(WIDENS[first], key=str)))
    x = torch.tensor([0.0, 1, 3]).to(first)
    copies = "clone.default"
    assert after(lambda x: x.to(wide).to(first) == x, "casts", x=x) == ["eq.Tensor"]
    assert copies not in after(lambda x: x.clone().to(wide).clone() == 1, "casts", x=x)


@given(wide=st.sampled_from([torch.float32, torch.int64]), narrow=st.sampled_from([torch.float16, torch.int32]))
def test_a_cast_that_rounds_stays(wide: torch.dtype, narrow: torch.dtype) -> None:
    x = torch.tensor([1.0001, 3.7, 2000.3]).to(wide)
    left = after(lambda x: x.to(narrow).to(wide) + 1, "casts", x=x)
    assert left.count("_to_copy.default") == (2 if wide != narrow else 0)


def test_of_two_casts_the_second_is_kept() -> None:
    x = X.half()
    assert after(lambda x: x.float().to(torch.bfloat16) + 1, "casts", x=x) == ["_to_copy.default", "add.Tensor"]


@given(orders=st.lists(st.permutations([0, 1, 2]), min_size=1, max_size=4))
def test_permutations_become_one_or_none(orders: list[list[int]]) -> None:
    def permuted(x: torch.Tensor) -> torch.Tensor:
        for order in orders:
            x = x.permute(order)
        return x.exp()

    composed = list(range(3))
    for order in orders:
        composed = [composed[i] for i in order]
    left = after(permuted, "layouts")
    assert left == (["exp.default"] if composed == [0, 1, 2] else [*left[:1], "exp.default"])


LAYOUTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[str]]] = {
    "mT": (lambda x: x.mT.transpose(1, 2), []),
    "t": (lambda x: x[0].t().t(), ["select.int"]),
    "transposes": (lambda x: x.transpose(0, 1).transpose(1, 2).transpose(0, 2), ["permute.default"]),
    "reshapes": (lambda x: x.reshape(6, 4).view(2, 12).reshape(3, 8), ["reshape.default"]),
    "flattened": (lambda x: x.reshape(2, 3, 2, 2).flatten(2).permute(0, 2, 1), ["permute.default"]),
    "reshapes back": (lambda x: x.reshape(6, 4).view(2, 3, 4), []),
    "expand": (lambda x: x.expand(2, 3, 4), []),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, dynamic: bool) -> None:
    function, left = LAYOUTS[name]
    dims = ({2: Dim("width", max=16)},) if dynamic and name in ("mT", "t", "transposes") else None
    made = after(lambda x: function(x).exp(), "layouts", dynamic=dims)
    assert [t for t in made if t != "sym_size.int"] == [*left, "exp.default"]


def test_a_transposed_weight_is_folded_by_its_recipe() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[.., 4] -> [.., 5]"""
            return x @ self.weight.t()

    program = decomposed(Tied(), X)
    assert targets(program) == ["matmul.default"]
    [recipe] = program.constants.values()
    assert recipe.parameters == ("weight",) and len(recipe.steps) == 1
