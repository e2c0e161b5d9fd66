"""Refitting on a GPU: there and back exactly, the old engine unchanged, and what cannot be refitted is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline import Compiled, RefitError
from pipeline.runtime.engine_refit import refit
from pipeline.trt import trt
from tests.gpu.networks import engine_of
from tests.gpu.refits import REFITS, needs_refit
from tests.runtime.engine_runner import EngineRunner
from tests.runtime.reference_networks import Net

pytestmark = pytest.mark.gpu


class Small(nn.Module):
    """A linear layer, a literal, and a buffer of ints that no training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("places", torch.arange(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 8] -> [2, 8]"""
        return torch.relu(self.linear(x)) * 2.5 + self.places


class ConvNorm(nn.Module):
    """A convolution and a batch norm, which are folded: their weights are made by recipes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 3, 8, 8] -> [2, 5]"""
        y = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.nn.functional.gelu(y).mean((2, 3)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (Small, (2, 8)),
    "conv-bn": (ConvNorm, (2, 3, 8, 8)),
}


def model(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    made = MODELS[name][0]().eval()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return made


def refittable(made: nn.Module, x: torch.Tensor, **options: Any) -> Compiled:
    compile = pipeline.default(immutable_weights=False, require_full_compilation=True, **options)
    compiled = compile(made, args=(x,))
    assert all(engine.refittable for engine in compiled.engines), compiled.report()
    return compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODELS)
@needs_refit
def test_there_and_back_is_exact(name: str, dtype: torch.dtype) -> None:
    a, b = model(name, 0).to(dtype), model(name, 1).to(dtype)
    x = torch.randn(MODELS[name][1], dtype=dtype)
    first = refittable(a, x)
    before = first(x)
    second = pipeline.refit_module_weights(first, b)
    after = second(x)
    third = pipeline.refit_module_weights(second, a)
    assert torch.equal(third(x), before), "A -> B -> A is exact"
    assert torch.equal(first(x), before), "the first is as it was"
    assert torch.equal(second(x), after)
    assert not torch.equal(after, before)
    loose = 2e-3 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(before, a(x), rtol=loose, atol=loose)
    torch.testing.assert_close(after, b(x), rtol=loose, atol=loose)


@pytest.mark.parametrize("name", MODELS)
@needs_refit
def test_a_refitted_engine_is_that_of_the_other_model(name: str) -> None:
    """Bit for bit what compiling it gives, and refittable again."""
    a, b = model(name, 0), model(name, 1)
    x = torch.randn(MODELS[name][1])
    refitted = pipeline.refit_module_weights(refittable(a, x), b)
    assert all(engine.refittable for engine in refitted.engines)
    torch.testing.assert_close(refitted(x), refittable(b, x)(x), rtol=1e-5, atol=1e-5)
    assert {e.digest for e in refitted.engines}.isdisjoint(e.digest for e in refittable(a, x).engines)


@needs_refit
def test_a_model_trained_in_place_is_refitted() -> None:
    made = model("linear", 0)
    x = torch.randn(2, 8)
    compiled = refittable(made, x)
    with torch.no_grad():
        made.linear.weight.mul_(-1)
    torch.testing.assert_close(pipeline.refit_module_weights(compiled, made)(x), made(x), rtol=2e-3, atol=2e-3)


@needs_refit
def test_one_weight_alone() -> None:
    made = model("linear", 0)
    x = torch.randn(2, 8)
    compiled = refittable(made, x)
    result = pipeline.refit_module_weights(compiled, {"linear.bias": torch.full((8,), 3.0)})
    other = model("linear", 0)
    with torch.no_grad():
        other.linear.bias.fill_(3.0)
    torch.testing.assert_close(result(x), other(x), rtol=2e-3, atol=2e-3)


@needs_refit
def test_engines_beside_pytorch_are_refitted() -> None:
    a, b, x = model("linear", 0), model("linear", 1), torch.randn(2, 8)
    compile = pipeline.default(immutable_weights=False, torch_executed_ops={"aten.relu.default"}, min_block_size=1)
    compiled = compile(a, args=(x,))
    torch.testing.assert_close(pipeline.refit_module_weights(compiled, b)(x), b(x), rtol=2e-3, atol=2e-3)


@needs_refit
def test_what_does_not_fit_is_named() -> None:
    compiled = refittable(model("linear", 0), torch.randn(2, 8))
    with pytest.raises(RefitError) as info:
        pipeline.refit_module_weights(compiled, {"linear.bias": torch.ones(3), "other": torch.ones(1)})
    assert set(info.value.weights) == {"linear.bias", "other"}


@pytest.mark.skipif(REFITS, reason="engines that refit can be built here")
def test_what_cannot_be_built_says_how_to_go_on() -> None:
    with pytest.raises(pipeline.BuildError, match="leave out immutable_weights=False"):
        refittable(model("linear", 0), torch.randn(2, 8))


def test_fixed_weights_are_built_anew() -> None:
    a, b, x = model("linear", 0), model("linear", 1), torch.randn(2, 8)
    compiled = pipeline.default()(a, args=(x,))
    torch.testing.assert_close(pipeline.refit_module_weights(compiled, b)(x), b(x), rtol=2e-3, atol=2e-3)


def scaled() -> tuple[Net, torch.Tensor, torch.Tensor]:
    """x * scale, with the weight named "scale"."""
    net = Net()
    x, scale = torch.arange(4.0), torch.tensor([2.0, 3.0, 4.0, 5.0])
    constant = net.constant(scale)
    net.net.set_weights_name(net.weight(scale), "scale")
    product = net.net.add_elementwise(net.input(x), constant, trt.ElementWiseOperation.PROD)
    return net.output(product.get_output(0)), x, scale


@needs_refit
def test_an_engine_alone() -> None:
    net, x, scale = scaled()
    engine, network = engine_of(net, REFIT=True)
    turned = refit(engine, {"scale": -scale})
    assert torch.equal(EngineRunner(turned, network)([x])[0].cpu(), -x * scale)
    assert torch.equal(EngineRunner(engine, network)([x])[0].cpu(), x * scale)
    back = refit(turned, {"scale": scale})
    assert torch.equal(EngineRunner(back, network)([x])[0].cpu(), x * scale)
    assert engine.digest != turned.digest


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"scale": torch.ones(3)}, r"TensorRT refused float32\[3\]; the engine holds 4 x float32"),
        ({"scale": torch.ones(4).half()}, r"TensorRT refused float16\[4\]; the engine holds 4 x float32"),
        ({"scale": torch.ones(4), "shift": torch.ones(4)}, "shift: TensorRT folded it into the engine or dropped it"),
    ],
)
@needs_refit
def test_an_engine_refuses(weights: dict[str, torch.Tensor], reason: str) -> None:
    engine, _ = engine_of(scaled()[0], REFIT=True)
    with pytest.raises(RefitError, match=reason):
        refit(engine, weights)
