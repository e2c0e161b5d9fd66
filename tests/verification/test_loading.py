"""`load`: operators whose engines a GPU refuses are found, and compiled otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.compiled import Compiled
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.frozen import FrozenDict
from pipeline.network.description import Layer, Network
from pipeline.network.engine import Engine
from pipeline.program import Built, Converted
from pipeline.records.kernels import Kernels
from pipeline.runtime.program_engines import LoadResults
from pipeline.stages import Load, unbuilt
from pipeline.trt import LIBRARY, trt
from tests.meta.executor_faults import factor, planted

aten = torch.ops.aten

GAP = "Compatible cubin or ptx module for device target '90' not found"


class Refusing:
    """A GPU without a kernel for engines with certain layers; ``words`` says why, given the layers."""

    def __init__(
        self,
        refuses: Callable[[Sequence[Layer]], Sequence[Layer]],
        words: Callable[[Sequence[Layer]], str] = lambda layers: GAP,
    ) -> None:
        self.refuses, self.words, self.sizes = refuses, words, list[int]()

    def __call__(self, compiled: Compiled, *, keep: bool) -> LoadResults:
        self.sizes.append(sum(len(network.layers) for network in compiled.networks))
        found = {network.name: self.refused(network) for network in compiled.networks}
        return LoadResults(
            FrozenDict({name: words for name, words in found.items() if words}), Kernels("this GPU", b"kernels" * keep)
        )

    def refused(self, network: Network) -> str:
        layers = self.refuses(network.layers)
        return f"{network.name}: TensorRT refused an execution context ({self.words(layers)})" if layers else ""


def of_kind(kind: str) -> Callable[[Sequence[Layer]], Sequence[Layer]]:
    return lambda layers: [layer for layer in layers if layer.kind == kind]


def naming(layers: Sequence[Layer]) -> str:
    """As TensorRT names what it could not compile."""
    return f"cuDNN graph compilation failed for {{ForeignNode[{layers[0].name}]}}"


def noted(converted: Converted) -> Built:
    """Engines that nobody runs, in no time."""
    c = converted
    engines = tuple(Engine(network.name, b"plan", LIBRARY) for network in c.networks)
    return Built(c.partitioned, c.networks, engines, c.recipes, c.literals, c.computed)


def compiling(loader: Any, **options: Any) -> pipeline.Pipeline[Any, Any]:
    return pipeline.default(**options).replace("build", noted).replace("load", Load(loader, noted))


class Block(nn.Module):
    """Products, activations, and two norms of different sizes, the smaller one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 16)
        self.norm, self.again, self.large = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 16]"""
        x = torch.tanh(self.first(self.norm(x)))
        return self.large(torch.atan(self.second(self.again(x))))


X = torch.randn(3, 8)


def check(made: Compiled, model: nn.Module, x: torch.Tensor = X) -> None:
    torch.testing.assert_close(made.module("reference")(x), model(x), rtol=1e-3, atol=1e-3)


def test_operators_without_a_kernel_are_lowered_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    model, loader = Block().eval(), Refusing(of_kind("NORMALIZATION"))
    with caplog.at_level(logging.WARNING, "pipeline"):
        made = compiling(loader)(model, (X,), dynamic_shapes=({0: torch.export.Dim("batch", max=9)},))
    action = "lowered by torch's decomposition, twice"
    rows = [(row.node, row.target, row.action) for row in made.coverage.healed]
    assert rows == [(f"layer_norm{n}", "aten.layer_norm.default", action) for n in ("", "_1", "_2")]
    assert all("its engine does not load: " in row.reason and GAP in row.reason for row in made.healed)
    assert not made.coverage.fallback and len(made.engines) == 1 and made.kernels.data == b"kernels"
    assert not of_kind("NORMALIZATION")(made.networks[0].layers)
    assert [r.message.count(f"3 of aten.layer_norm.default {action}") for r in caplog.records] == [1], "said once"
    assert "healed: lowered by torch's decomposition" in made.report()
    check(made, model)


def test_operators_that_the_error_names_are_tried_first() -> None:
    def built(words: Callable[[Sequence[Layer]], str]) -> int:
        loader = Refusing(of_kind("NORMALIZATION"), words)
        assert len(compiling(loader)(Block().eval(), (X,)).healed) == 3
        return len(loader.sizes)

    assert built(naming) < built(lambda layers: GAP)


def test_an_operator_that_no_form_helps_runs_in_pytorch() -> None:
    model = Block().eval()
    made = compiling(Refusing(lambda layers: [x for x in layers if x.name == "atan"]), min_block_size=1)(model, (X,))
    assert [(row.node, row.action) for row in made.coverage.healed] == [("atan", "runs in PyTorch")]
    (fallback,) = made.coverage.fallback
    assert fallback.node == "atan" and GAP in fallback.reason
    check(made, model)
    with pytest.raises(pipeline.UnsupportedOperatorException, match="cubin or ptx"):
        compiling(Refusing(of_kind("UNARY")), require_full_compilation=True)(model, (X,))


def test_operators_that_do_not_load_together_are_parted() -> None:
    def fused(layers: Sequence[Layer]) -> Sequence[Layer]:
        """A norm and the product behind it."""
        kinds = {layer.kind for layer in layers}
        norms = [x for x in layers if x.kind == "NORMALIZATION" and x.outputs[0].shape[-1] == 8]
        return norms if {"MATRIX_MULTIPLY"} <= kinds else []

    model = Block().eval()
    made = compiling(Refusing(fused))(model, (X,))
    assert {row.target for row in made.healed} == {"aten.layer_norm.default"}
    assert all("together with" in row.reason for row in made.healed[:1])
    assert not made.coverage.fallback and not fused(made.networks[0].layers)
    check(made, model)


def test_another_converter_comes_before_decompositions() -> None:
    @dynamo_tensorrt_converter(
        aten.tanh.default, supports_dynamic_shapes=True, priority=pipeline.ConverterPriority.HIGH
    )
    def own(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        layer = ctx.add(name, "activation", args[0], trt.ActivationType.SCALED_TANH)
        layer.alpha = layer.beta = 1.0
        return layer.get_output(0)

    def scaled(layers: Sequence[Layer]) -> Sequence[Layer]:
        return [x for x in layers if x.kind == "ACTIVATION" and "SCALED_TANH" in str(x.attributes)]

    registry = pipeline.DYNAMO_CONVERTERS.register(own)
    made = compiling(Refusing(scaled), registry=registry)(Block().eval(), (X,))
    assert [(row.node, row.action) for row in made.healed] == [("tanh", "lowered by another converter")]


def test_halves_that_do_not_load_are_computed_in_float32() -> None:
    def halves(layers: Sequence[Layer]) -> Sequence[Layer]:
        return [x for x in layers if x.kind == "NORMALIZATION" and x.outputs[0].dtype == "float16"]

    model = Block().eval().half()
    made = compiling(Refusing(halves))(model, (X.half(),))
    assert {row.action for row in made.healed} <= {"computed in float32"}
    check(made, model, X.half())


def test_what_loads_without_a_gpu_to_ask_or_with_the_setting_off_stays_as_it_is() -> None:
    def none(compiled: Compiled, *, keep: bool) -> None:
        return None

    loader = Refusing(of_kind("NORMALIZATION"))
    for made in (
        compiling(none)(Block().eval(), (X,)),
        compiling(loader, load_built_engines=False)(Block().eval(), (X,)),
        compiling(loader).replace("build", unbuilt)(Block().eval(), (X,)),
        pipeline.default()(Block().eval(), (X,)) if not torch.cuda.is_available() else compiling(none)(Block(), (X,)),
    ):
        assert made.healed == () and not made.kernels
    assert not loader.sizes


def test_a_gpu_that_loads_nothing_is_an_error_at_once() -> None:
    loader = Refusing(lambda layers: layers, lambda layers: "TensorRT-RTX does not support this compute capability")
    with pytest.raises(
        pipeline.ExecutionError, match=r"loads no engine on this GPU.*this compute capability"
    ) as caught:
        compiling(loader)(Block().eval(), (X,))
    assert "load_built_engines=False" in str(caught.value) and len(loader.sizes) == 2


def test_a_segment_that_loads_in_no_form_runs_in_pytorch() -> None:
    class Whole(Refusing):
        """Refuses every engine of a program that is kept, whatever is in it, and none that is tried."""

        def __call__(self, compiled: Compiled, *, keep: bool) -> LoadResults:
            return super().__call__(compiled, keep=keep) if keep else LoadResults()

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
    made = compiling(Whole(lambda layers: layers))(model, (X,))
    assert not made.engines and len(made.coverage.fallback) == made.coverage.total > 1
    assert "runs in PyTorch" in {row.action for row in made.healed}
    check(made, model)


def test_what_runs_in_pytorch_stays_there_when_verify_takes_something_apart() -> None:
    loader = Refusing(lambda layers: [layer for layer in layers if layer.name == "tanh"])
    model, compile = Block().eval(), compiling(loader, min_block_size=1)
    with planted(factor, "NORMALIZATION"):
        made = (compile | pipeline.verify("heal", executor="reference"))(model, (X,))
    actions = {row.node: row.action for row in made.healed}
    assert actions.pop("tanh") == "runs in PyTorch" and set(actions) == {"layer_norm", "layer_norm_1", "layer_norm_2"}
    assert [row.node for row in made.coverage.fallback] == ["tanh"]
    check(made, model)
