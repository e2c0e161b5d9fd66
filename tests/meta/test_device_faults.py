"""Decompositions that are right on one device only are found by the tests that capture as on a GPU."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import torch

import pipeline
from benchmarks import zoo, zoo_devices
from pipeline.converters import normalization
from pipeline.impl import reduce
from pipeline.testing import CheckError
from pipeline.testing.properties import check_target

aten = torch.ops.aten
FEW = hypothesis.settings(max_examples=10, derandomize=True, database=None, phases=[hypothesis.Phase.generate])


def statistics_of_the_cpu(x: torch.Tensor, mean: Any, var: Any, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The fault of EfficientNet: a batch norm keeps no statistics on a GPU either."""
    return x.new_zeros((0,)), x.new_zeros((0,))


def edges_that_are_cut(bins: int, low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
    """The fault of mixtures of experts: the edges of bins of ints are rounded down."""
    return torch.linspace(low, high, bins + 1, dtype=dtype)


def test_the_property_finds_statistics_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    target = aten._native_batch_norm_legit_no_training.default
    monkeypatch.setattr(normalization, "_saved_statistics", statistics_of_the_cpu)
    options: dict[str, Any] = {"profile": FEW, "build_every": 0, "dynamic": False}
    with pytest.raises(CheckError, match=r"(?s)as on cuda: .*returned float32\[0\]"):
        check_target(target, devices=("cuda",), **options)


def test_the_zoo_finds_edges_that_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = next(each for each in zoo.architectures("text") if each.name == "qwen3_moe")
    monkeypatch.setattr(reduce, "_bin_edges", edges_that_are_cut)
    assert "failed" in zoo_devices.row(experts)


def test_a_model_finds_statistics_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalization, "_saved_statistics", statistics_of_the_cpu)
    inputs = torch.randn(2, 3, 4, 4), torch.zeros(3), torch.ones(3)
    assert pipeline.default().until("decompose")(Normed(), inputs)
    with pytest.raises(pipeline.ConversionError, match=r"returned float32\[0\]"):
        pipeline.default(device="cuda").until("decompose")(Normed(), inputs)


class Normed(torch.nn.Module):
    """A batch norm as torch takes it apart."""

    def forward(self, x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        return aten._native_batch_norm_legit_no_training(x, None, None, mean, var, 0.1, 1e-5)[0]
