"""Autocast and inference mode around capture, stages and calls."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.runtime.autocast_context import is_autocast_on, without_autocast


class Net(nn.Module):
    """Two layers and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        """[N, 8] -> [N, 8]"""
        y = self.norm(torch.relu(self.first(x)))
        return self.second(y if scale is None else y * scale)


def bf16() -> Any:
    """Autocast on the CPU."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("by_torch_compile", [False, True], ids=["pipeline", "torch.compile"])
def test_a_model_compiled_within_autocast_computes_as_there(by_torch_compile: bool) -> None:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 8)
    state = copy.deepcopy(model.state_dict())
    with bf16(), torch.no_grad():
        expected = model(x)
        if by_torch_compile:
            torch.compiler.reset()
            actual = torch.compile(model, backend=pipeline.backend(executor="reference"))(x)
        else:
            compiled = pipeline.default(require_full_compilation=True)(model, args=(x,), kwargs={"scale": None})
            assert set(compiled.program.parameters) == set(state)
            actual = compiled.module(executor="reference")(x, scale=None)
    assert actual.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    assert "forward" not in vars(model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())


def test_ranges_are_kept_within_autocast() -> None:
    model, x = Net().eval(), pipeline.Input(min_shape=(1, 8), max_shape=(4, 8))
    with bf16():
        compiled = pipeline.default(require_full_compilation=True)(model, args=(x,))
    assert [str(r) for r in compiled.program.shapes.values()] == ["1..4..4"]


def test_an_exported_program_has_its_dtypes() -> None:
    model, x = Net().eval(), torch.randn(2, 8)
    exported = torch.export.export(model, (x,))
    outside = pipeline.default()(exported)
    with bf16():
        inside = pipeline.default()(exported)
    assert [str(network) for network in inside.networks] == [str(network) for network in outside.networks]


def test_a_compiled_program_has_its_dtypes_wherever_it_is_called() -> None:
    model, x = Net().eval(), torch.randn(2, 8)
    partly = pipeline.default(min_block_size=1, torch_executed_ops={torch.ops.aten.linear, torch.ops.aten.addmm})
    compiled = partly(model, args=(x,))
    assert {segment.kind for segment in compiled.partitioned.segments} == {"engine", "torch"}
    module = compiled.module(executor="reference")
    outside = module(x)
    with bf16():
        assert torch.equal(module(x), outside)
        assert is_autocast_on()


def test_without_autocast_ends_where_it_ends() -> None:
    with bf16():
        with without_autocast():
            assert not is_autocast_on()
        assert is_autocast_on()
    assert not is_autocast_on()


def test_a_model_made_in_inference_mode() -> None:
    """torch counts no writes to its tensors."""
    with torch.inference_mode():
        model, other, x = Net().eval(), Net().eval(), torch.randn(2, 8)
        compiled = pipeline.default()(model, args=(x,))
        for program, same in ((compiled, model), (pipeline.refit_module_weights(compiled, other), other)):
            torch.testing.assert_close(program.module(executor="reference")(x), same(x), rtol=1e-5, atol=1e-5)
        torch.compiler.reset()
        by_dynamo = torch.compile(model, backend=pipeline.backend(executor="reference"))
        torch.testing.assert_close(by_dynamo(x), model(x), rtol=1e-5, atol=1e-5)
