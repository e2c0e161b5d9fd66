"""`verify(on_failure="heal")`: nodes at fault run in another form, the record says so, and the program agrees."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import pipeline
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.network.description import Layer
from pipeline.runtime.reference import executor
from pipeline.runtime.reference.kinds import KINDS
from pipeline.stages import unbuilt
from pipeline.trt import trt
from tests.meta.executor_faults import factor, planted

aten = torch.ops.aten


def healing(**options: Any) -> Any:
    return pipeline.default(**options) | pipeline.verify("heal", executor="reference")


class Block(nn.Module):
    """A product, an activation, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 8]"""
        return self.second(torch.atan(self.norm(torch.tanh(self.first(x)))))


X = torch.randn(3, 8)


def test_nothing_is_healed_where_nothing_is_wrong() -> None:
    made = healing()(Block().eval(), (X,))
    assert made.agreement.holds and made.coverage.healed == () and made.engines


def test_a_node_is_lowered_by_its_decomposition() -> None:
    with planted(factor, "NORMALIZATION"):
        made = healing()(Block().eval(), (X,))
        assert made.agreement.holds
    (row,) = made.coverage.healed
    assert (row.node, row.target) == ("layer_norm", "aten.layer_norm.default")
    assert row.action == "lowered by torch's decomposition, twice" and "engine with this node" in row.reason
    assert not made.coverage.fallback and made.engines
    assert not any(layer.kind == "NORMALIZATION" for network in made.networks for layer in network.layers)
    assert "healed: lowered by torch's decomposition" in made.report()


def test_a_node_runs_in_pytorch_where_no_lowering_helps() -> None:
    with planted(factor, "UNARY"):
        made = healing(min_block_size=1)(Block().eval(), (X,))
    assert [(row.node, row.action) for row in made.coverage.healed] == [("atan", "runs in PyTorch")]
    assert [(f.node, "engine with this node" in f.reason) for f in made.coverage.fallback] == [("atan", True)]
    torch.testing.assert_close(made.module("reference")(X), made(X))


def test_halves_are_computed_in_float32() -> None:
    def in_halves(right: Any, layer: Layer, inputs: Any, weights: Any) -> Any:
        results = right(layer, inputs, weights)
        return tuple(v * 1.5 if v.dtype == torch.float16 else v for v in results)

    with planted(in_halves, "MATRIX_MULTIPLY"):
        made = healing(use_fp32_acc=False)(Block().eval().half(), (X.half(),))
        assert made.agreement.holds
    assert {row.action for row in made.coverage.healed} == {"computed in float32"}
    assert {row.target for row in made.coverage.healed} == {"aten.linear.default"}
    assert not made.coverage.fallback
    assert made(X.half()).dtype == torch.float16


def test_another_converter_is_tried_before_a_decomposition() -> None:
    @dynamo_tensorrt_converter(
        aten.tanh.default, supports_dynamic_shapes=True, priority=pipeline.ConverterPriority.HIGH
    )
    def wrong(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return ctx.add(name, "activation", args[0], trt.ActivationType.SIGMOID).get_output(0)

    compile = pipeline.default(registry=pipeline.DYNAMO_CONVERTERS.register(wrong))
    made = (compile | pipeline.verify("heal", executor="reference"))(Block().eval(), (X,))
    assert [(row.node, row.action) for row in made.coverage.healed] == [("tanh", "lowered by another converter")]


def test_independent_faults_are_healed_each_in_its_own_form() -> None:
    with planted(factor, "NORMALIZATION"), planted_too("UNARY"):
        made = healing(min_block_size=1)(Block().eval(), (X,))
    assert {row.node: row.action for row in made.coverage.healed} == {
        "layer_norm": "lowered by torch's decomposition, twice",
        "atan": "runs in PyTorch",
    }


def planted_too(kind: str) -> Any:
    """Another fault beside one: only of the operator atan, since decompositions have unary layers too."""

    def run(layer: Layer, inputs: Any, weights: Any) -> Any:
        results = KINDS[kind](layer, inputs, weights)
        return factor(lambda *_: results, layer, inputs, weights) if layer.name == "atan" else results

    return patch.object(executor, "KINDS", {**executor.KINDS, kind: run})


def test_what_no_form_heals_raises() -> None:
    class Output(nn.Module):
        """One operator, which may not run in PyTorch."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N] -> [N]"""
            return torch.atan(x)

    compile = pipeline.default(require_full_compilation=True).replace("build", unbuilt)
    with planted(factor, "UNARY"), pytest.raises(pipeline.AgreementError, match="healing failed"):
        (compile | pipeline.verify("heal", executor="reference"))(Output(), (torch.randn(4),))


def test_verify_by_itself_heals_with_the_default_stages() -> None:
    made = pipeline.default()(Block().eval(), (X,))
    with planted(factor, "NORMALIZATION"):
        healed = pipeline.verify("heal", executor="reference")(made)
    assert healed.agreement is not None and healed.agreement.holds and healed.engines
    assert made.coverage.healed == ()
