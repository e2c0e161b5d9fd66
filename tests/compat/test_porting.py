"""The pieces of ``examples/porting``: each is reached, computes what eager does, and follows its weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import frozen
from torch import nn

import pipeline
from examples.porting import (
    addmm,
    convolution,
    embedding,
    fmod,
    fx_leaky_relu,
    fx_linear,
    gelu,
    getitem,
    leaky_relu,
    torchscript_hardtanh,
)
from pipeline.compat.torch_tensorrt import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.stages import unbuilt

X, IMAGE = torch.randn(4, 8), torch.randn(2, 3, 8, 8)


class Calls(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        """What the function gives."""
        return self.function(x)


@frozen
class Piece:
    """A converter, a model that has its operator, and which of its layers or weights show that it was reached."""

    converter: Callable[..., Any]
    model: Callable[[], nn.Module]
    x: torch.Tensor
    calls: int
    weights: tuple[str, ...] = ()


def mlp(activation: nn.Module) -> nn.Module:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(8, 6), activation, nn.Linear(6, 5))


PIECES = {
    "gelu": Piece(gelu.gelu_by_tanh, lambda: nn.GELU("tanh"), X, 1),
    "leaky_relu by layer": Piece(leaky_relu.by_layer, lambda: nn.LeakyReLU(0.2), X, 1),
    "leaky_relu by block": Piece(leaky_relu.by_block, nn.LeakyReLU, X, 1),
    "convolution": Piece(
        convolution.convolution,
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 2, 1)),
        IMAGE,
        2,
        ("0.bias", "0.weight", "2.bias", "2.weight"),
    ),
    "embedding": Piece(
        embedding.embedding, lambda: nn.Embedding(10, 4), torch.tensor([[1, 9], [0, 3]]), 1, ("embedding TABLE",)
    ),
    "fmod": Piece(
        fmod.fmod, lambda: Calls(lambda x: torch.fmod(x, 0.3) + torch.fmod(x, x + 1) + torch.fmod(x, 2)), X, 3
    ),
    "getitem": Piece(getitem.getitem, lambda: Calls(lambda x: x.max(1)[0] + x.split(4, 1)[1].sum(1)), X, 2),
    "fx linear": Piece(fx_linear.linear, lambda: mlp(nn.ReLU()), X, 2, ("0.bias", "0.weight", "2.bias", "2.weight")),
    "torchscript hardtanh": Piece(torchscript_hardtanh.hardtanh, lambda: nn.Hardtanh(-0.5, 0.7), X, 1),
    "fx leaky_relu": Piece(fx_leaky_relu.leaky_relu, lambda: nn.LeakyReLU(0.3), X, 1),
}


def counting(converter: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """The converter, with its declarations, noting its calls."""

    def counted(*args: Any) -> Any:
        calls.append(args[-1])
        return converter(*args)

    counted.__dict__.update(converter.__dict__)
    return counted


def compiled(model: nn.Module, x: torch.Tensor, **options: Any) -> pipeline.Compiled:
    """The program without engines; whatever is not used is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pipeline.UnreachedWarning)
        compile = pipeline.default(require_full_compilation=True, **options).replace("build", unbuilt)
        return compile(model.eval(), args=(x,))


def agrees(program: pipeline.Compiled, model: nn.Module, x: torch.Tensor) -> None:
    """What was compiled gives what eager gives."""
    torch.testing.assert_close(program.module(executor="reference")(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PIECES)
def test_a_converter_runs_with_other_import_lines(name: str) -> None:
    piece, calls = PIECES[name], list[str]()
    torch.manual_seed(0)
    model, other = piece.model().eval(), piece.model().eval()
    registry = DYNAMO_CONVERTERS.register(counting(piece.converter, calls))
    program = compiled(model, piece.x, registry=registry)
    assert len(calls) == piece.calls
    agrees(program, model, piece.x)
    assert tuple(sorted(program.refit_map)) == piece.weights
    assert not program.refit_map.computed
    if piece.weights:
        agrees(pipeline.refit_module_weights(program, other), other, piece.x)


def test_the_validator_leaves_the_other_gelu_to_ours() -> None:
    calls: list[str] = []
    registry = DYNAMO_CONVERTERS.register(counting(gelu.gelu_by_tanh, calls))
    with pytest.warns(pipeline.UnreachedWarning, match=r"is_tanh rejects this call"):
        program = pipeline.default(registry=registry).replace("build", unbuilt)(nn.GELU().eval(), args=(X,))
    agrees(program, nn.GELU(), X)
    assert not calls


def test_a_decomposition_runs_with_other_import_lines() -> None:
    model, other = nn.Linear(8, 6).eval(), nn.Linear(8, 6).eval()
    program = compiled(model, X, decompositions=DECOMPOSITIONS.register(addmm.addmm))
    assert program.partitioned.program.decomposed == {torch.ops.aten.addmm.default}
    agrees(program, model, X)
    agrees(pipeline.refit_module_weights(program, other), other, X)


def test_the_script_of_a_model_reaches_its_converter() -> None:
    registry = DYNAMO_CONVERTERS.register(torchscript_hardtanh.hardtanh)
    model = nn.Sequential(nn.Linear(8, 6), nn.Hardtanh(-0.2, 0.3)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.script(model)
    program = compiled(script, X, registry=registry)
    agrees(program, model, X)
    assert "'clip of hardtanh'" in str(program.networks[0])


def test_pieces_of_several_kinds_are_in_one_registry() -> None:
    registry = DYNAMO_CONVERTERS.register(fx_linear.linear, fx_leaky_relu.leaky_relu, gelu.gelu_by_tanh)
    model = nn.Sequential(nn.Linear(8, 6), nn.LeakyReLU(), nn.Linear(6, 6), nn.GELU("tanh"))
    program = compiled(model, X, registry=registry)
    agrees(program, model, X)


def test_the_weights_holder_is_empty_after_the_build() -> None:
    contexts: list[Any] = []

    def noted(ctx: Any, *rest: Any) -> Any:
        contexts.append(ctx)
        return embedding.embedding(ctx, *rest)

    noted.__dict__.update(embedding.embedding.__dict__)
    compile = pipeline.default(registry=DYNAMO_CONVERTERS.register(noted))
    model, x = nn.Embedding(10, 4).eval(), torch.tensor([[1, 9], [0, 3]])
    converted = compile.until("convert")(model, args=(x,))
    assert [len(ctx.cpu_weights_reference_holder) > 0 for ctx in contexts] == [True]
    assert [weight.name for weight in converted.networks[0].weights] == ["embedding TABLE"]
    compile(model, args=(x,))
    del converted
    assert [ctx.cpu_weights_reference_holder for ctx in contexts] == [[], []]
    assert [ctx.weight_refit_map for ctx in contexts] == [{}, {}]


@pytest.mark.parametrize("name", PIECES)
def test_tensorrt_builds_an_engine_of_a_piece(name: str) -> None:
    piece = PIECES[name]
    compile = pipeline.default(registry=DYNAMO_CONVERTERS.register(piece.converter), require_full_compilation=True)
    assert all(engine.nbytes > 0 for engine in compile(piece.model().eval(), args=(piece.x,)).engines)
