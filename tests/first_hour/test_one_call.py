"""``pipeline.compile``: one call, and the precision as an argument wherever a model is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline

X = torch.linspace(-1, 1, 32).reshape(4, 8)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1)).eval().requires_grad_(False)


def _networks(compiled: pipeline.Compiled) -> str:
    return "\n".join(map(str, compiled.networks))


def test_it_is_the_default_pipeline_in_one_call(net: nn.Module) -> None:
    rows = pipeline.Input(min_shape=(1, 8), max_shape=(6, 8))
    one = pipeline.compile(net, args=(rows,), min_block_size=1, output_names=["p"])
    two = pipeline.default(min_block_size=1)(net, (rows,), output_names=["p"])
    assert _networks(one) == _networks(two) and one.settings == two.settings
    torch.testing.assert_close(one(X), net(X))
    dynamic = pipeline.compile(net, (X,), dynamic_shapes=({0: torch.export.Dim("rows", max=8)},))
    torch.testing.assert_close(dynamic(X[:3]), net(X[:3]))


@pytest.mark.parametrize("precision", ["float16", "fp16", torch.float16, "bfloat16", "bf16"])
def test_a_precision_is_the_stage_autocast(net: nn.Module, precision: Any) -> None:
    dtype = torch.bfloat16 if "b" in str(precision).removeprefix("torch.") else torch.float16
    staged = pipeline.default().insert(pipeline.autocast(dtype), before="decompose")
    found = pipeline.default(precision=precision)
    assert found.until("convert")(net, (X,)).networks == staged.until("convert")(net, (X,)).networks


@pytest.mark.parametrize("precision", [None, "float32", "fp32", torch.float32])
def test_float32_leaves_the_model_as_it_is(precision: Any) -> None:
    assert pipeline.default(precision=precision).names == pipeline.default().names


def test_the_option_of_torch_compile(net: nn.Module) -> None:
    compiled: list[pipeline.Compiled] = []
    keep = pipeline.stage(name="keep")(_keeping(compiled))
    torch._dynamo.reset()
    half = torch.compile(net, backend=pipeline.backend(pipeline.default() | keep), options={"precision": "float16"})
    torch.testing.assert_close(half(X), net(X), rtol=1e-2, atol=1e-2)
    assert "float16" in _networks(compiled[0])


def _keeping(found: list[pipeline.Compiled]) -> Callable[[pipeline.Compiled], pipeline.Compiled]:
    def keep(compiled: pipeline.Compiled) -> pipeline.Compiled:
        found.append(compiled)
        return compiled

    return keep
