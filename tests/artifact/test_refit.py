"""Refitting takes weights of the architecture that was compiled, and names everything else: it gives no third model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

import pipeline
from pipeline import Compiled, RefitError, refit_module_weights
from pipeline.stages.unbuilt import unbuilt

X = torch.linspace(-1, 1, 8).reshape(2, 4)
PLACES = torch.tensor([0, 2, 1])


class Stack(nn.Module):
    """Linear layers."""

    def __init__(self, layers: int = 1, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        """[2, width] -> [2, width]"""
        return torch.relu(self.layers(x))


def test_a_program_without_engines_takes_weights() -> None:
    compile = pipeline.default().replace("build", unbuilt)
    compiled, other = compile(Stack(), args=(X,)), Stack()
    assert not compiled.engines
    torch.testing.assert_close(refit_module_weights(compiled, other)(X), other(X))


class State(nn.Module):
    """A parameter that is read and one that is not, a buffer that no state dict has, and a tensor that is neither."""

    def __init__(self, more: bool = False, rows: int = 2) -> None:
        super().__init__()
        self.weight, self.unread = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(rows))
        self.register_buffer("hidden", torch.randn(4), persistent=False)
        self.plain = torch.randn(4)
        if more:
            self.register_buffer("more", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[2, 4] -> [2, 4]"""
        return x @ self.weight + self.hidden * self.plain + torch.tensor([1.0, 2.0, 3.0, 4.0])


class Tied(nn.Module):
    """An embedding that is the last layer's weight as well, or is not."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        if tied:
            self.last.weight = self.first.weight

    def forward(self, places: Tensor) -> Tensor:
        """[3] -> [3, 5]"""
        return self.last(self.first(places))


def compiled(model: Any, *args: Tensor) -> Compiled:
    return pipeline.default()(model.eval() if isinstance(model, nn.Module) else model, args=args)


def gives(result: Compiled, model: nn.Module, *args: Tensor) -> None:
    """What was refitted computes what the model does."""
    torch.testing.assert_close(result.module(executor="reference")(*args), model(*args).detach())


def wrong(result: Compiled, weights: Any) -> dict[str, str]:
    with pytest.raises(RefitError) as caught:
        refit_module_weights(result, weights)
    assert all(name in str(caught.value) for name in caught.value.weights)
    return caught.value.weights


FORMS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "module": lambda model, x: model,
    "export": lambda model, x: export(model, (x,)),
    "state dict": lambda model, x: model.state_dict(),
}
ALL = pytest.mark.parametrize("form", FORMS)


@ALL
def test_a_larger_model_is_refused(form: str) -> None:
    found = wrong(compiled(Stack(), X), FORMS[form](Stack(3).eval(), X))
    assert set(found) == {f"layers.{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")}
    assert set(found.values()) == {"the compiled program has no parameter or buffer of this name"}


@pytest.mark.parametrize("form", ["module", "export"])
def test_a_smaller_model_is_refused(form: str) -> None:
    found = wrong(compiled(Stack(2), X), FORMS[form](Stack(1).eval(), X))
    assert found == dict.fromkeys(
        ("layers.1.weight", "layers.1.bias"), "new_weights has no parameter or buffer of this name"
    )


def test_missing_unexpected_reshaped_and_cast_names_are_listed_together() -> None:
    model = Stack(2).eval()
    model.layers[0], model.layers[1].bias = nn.Linear(4, 7).half(), None
    model.layers[1].register_parameter("scale", nn.Parameter(torch.ones(4)))
    assert wrong(compiled(Stack(2), X), model) == {
        "layers.1.bias": "new_weights has no parameter or buffer of this name",
        "layers.1.scale": "the compiled program has no parameter or buffer of this name",
        "layers.0.weight": "its new value is float16[7, 4], and the engine needs float32[4, 4]",
        "layers.0.bias": "its new value is float16[7], and the engine needs float32[4]",
    }


@pytest.mark.parametrize("form", ["module", "export"])
@pytest.mark.parametrize("exported", [False, True])
def test_every_tensor_of_a_model_is_taken(form: str, exported: bool) -> None:
    model, other = State().eval(), State().eval()
    result = compiled(export(model, (X,)) if exported else model, X)
    gives(refit_module_weights(result, FORMS[form](other, X)), other, X)
    gives(result, model, X)


def test_a_state_dict_leaves_what_it_lacks() -> None:
    model, other = State().eval(), State().eval()
    result = refit_module_weights(compiled(model, X), other.state_dict())
    other.hidden, other.plain = model.hidden, model.plain
    gives(result, other, X)


@pytest.mark.parametrize("form", ["module", "export"])
def test_what_nobody_reads_tells_models_apart_too(form: str) -> None:
    result = compiled(State(), X)
    assert set(wrong(result, FORMS[form](State(more=True).eval(), X))) == {"more"}
    assert set(wrong(compiled(State(more=True), X), FORMS[form](State().eval(), X))) == {"more"}
    assert wrong(result, FORMS[form](State(rows=7).eval(), X)) == {
        "unread": "its new value is float32[7], and the engine needs float32[2]"
    }


@ALL
def test_tied_weights_stay_tied(form: str) -> None:
    model, other = Tied().eval(), Tied().eval()
    result = refit_module_weights(compiled(model, PLACES), FORMS[form](other, PLACES))
    gives(result, other, PLACES)
    gives(refit_module_weights(result, FORMS[form](model, PLACES)), model, PLACES)


@pytest.mark.parametrize("name", ["first.weight", "last.weight"])
def test_one_name_of_a_tied_weight_is_enough(name: str) -> None:
    other = Tied().eval()
    result = compiled(Tied(), PLACES)
    for _ in range(2):
        result = refit_module_weights(result, {name: other.first.weight})
        gives(result, other, PLACES)


@ALL
def test_tied_weights_cannot_become_two(form: str) -> None:
    other = Tied(tied=False).eval()
    found = wrong(compiled(Tied(), PLACES), FORMS[form](other, PLACES))
    assert found == {"last.weight": "it differs from first.weight, and the two are one tensor in the compiled program"}
    other.last.weight = nn.Parameter(other.first.weight.detach().clone())
    gives(refit_module_weights(compiled(Tied(), PLACES), FORMS[form](other, PLACES)), other, PLACES)


@ALL
def test_weights_that_are_two_may_become_one(form: str) -> None:
    other = Tied().eval()
    gives(refit_module_weights(compiled(Tied(tied=False), PLACES), FORMS[form](other, PLACES)), other, PLACES)


def test_what_is_kept_has_to_be_there_still() -> None:
    model = Stack(2).eval()
    result = compiled(model, X)
    with torch.no_grad():
        model.layers[0].bias.add_(1)
    found = wrong(result, {"layers.1.bias": torch.zeros(4)})
    assert found == {"layers.0.bias": "it changed in place after compiling, and new_weights does not have it"}
    gives(refit_module_weights(result, model), model, X)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (lambda: {"layers.0.bias": [0.0] * 4}, "its value is a list: expected a torch.Tensor"),
        (lambda: {"layers.0.bias": torch.zeros(4, device="meta")}, "its new value is on the meta device, without data"),
        (
            lambda: {"layers.0.bias": nn.LazyLinear(4).bias},
            "its value is an uninitialized parameter without a shape: call the new module once",
        ),
        (
            lambda: {"layers.0.bias": torch.zeros(4).to_sparse()},
            "its layout is torch.sparse_coo, and the engine needs torch.strided",
        ),
    ],
)
def test_what_is_no_weight_is_named(weights: Callable[[], Any], reason: str) -> None:
    assert wrong(compiled(Stack(), X), weights()) == {"layers.0.bias": reason}
