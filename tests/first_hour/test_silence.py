"""A program that runs in PyTorch is no silent success: what is warned of, and what settings refuse."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import pipeline

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Wide(nn.Module):
    """Sine in float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4, 8] -> [4, 8]"""
        return torch.sin(x * 2) + 1


class Sum(nn.Module):
    """Two operators in float32 and four in float64."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[4, 8], [4, 8] -> [4, 8], [4, 8]"""
        return x.sin() + 1, y.sin().cos().exp() + 1


class Eigen(nn.Module):
    """What TensorRT has no layer for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4, 4] -> [4]"""
        return torch.linalg.eigvals(x)


class Sliced(nn.Module):
    """A slice by a number that Python reads."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        """[4, 8], [] -> [n, 8]"""
        k = n.item()
        torch._check(k >= 1)
        torch._check(k <= 4)
        return x[:k].sin() * 2


EMPTY: dict[str, tuple[nn.Module, tuple[Any, ...], str]] = {
    "float64": (Wide(), (X.double(),), "0 of .* is float64, .* truncate_double=True"),
    "mostly float64": (Sum(), (X, X.double()), "2 of 6 operators run in TensorRT, the others in PyTorch"),
    "eigenvalues": (Eigen(), (torch.eye(4),), r"0 of 1 operators .*\n  1 operator: .* no implementation on pairs"),
    "a slice by item": (Sliced(), (X, torch.tensor(2)), "0 of .* Python reads .* instead of its item"),
}


@pytest.mark.parametrize(("model", "args", "said"), EMPTY.values(), ids=EMPTY)
def test_an_engine_of_nothing_is_warned_of(model: nn.Module, args: tuple[Any, ...], said: str) -> None:
    least = 1 if said[0] == "2" else 5
    with pytest.warns(pipeline.CoverageWarning, match=rf"(?s){said}") as caught:
        pipeline.compile(model.eval(), args, min_block_size=least)
    (found,) = [each for each in caught if each.category is pipeline.CoverageWarning]
    assert found.filename == __file__ and "compiled.report()" in str(found.message)


def test_whole_programs_and_most_of_one_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pipeline.CoverageWarning)
        pipeline.compile(Wide().eval(), (X.double(),), truncate_double=True)
        pipeline.compile(nn.Identity(), (X,))
        pipeline.compile(Sum().eval(), (X, X.double()), min_block_size=1, truncate_double=True)


def test_full_compilation_of_nothing_is_refused() -> None:
    with pytest.raises(pipeline.UnsupportedOperatorException, match="no operator of the model is left for an engine"):
        pipeline.compile(nn.Identity(), (X,), require_full_compilation=True)


class Quantized(nn.Module):
    """A matmul of an activation that is quantized to int8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4, 8] -> [4, 8]"""
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127) @ x.T


def test_fused_quantization_of_nothing_is_refused() -> None:
    with pytest.raises(pipeline.QuantizationError, match=r"no quantized layer in an engine: .*pipeline\.quantize"):
        pipeline.compile(nn.Linear(8, 4).eval(), (X,), require_fused_quantization=True)


def test_fused_quantization_that_runs_in_pytorch_is_refused() -> None:
    quantized = pipeline.default(require_fused_quantization=True, torch_executed_ops=[lambda path: True])
    with pytest.raises(pipeline.QuantizationError, match="PyTorch: 1 quantized layers are not fused") as caught:
        quantized(Quantized().eval(), (X,))
    assert "pipeline.fake_quantize.default at node" in str(caught.value)
