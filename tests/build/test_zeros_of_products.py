"""Products whose sums TensorRT lengthens with zeros: nothing is computed of these."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import linear

import pipeline
from pipeline import quirks
from pipeline.quirks.zero_padded_k import values_at_padding
from pipeline.trt import CAPABILITIES

PLANS = pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="plans of another TensorRT hold no sources")
FORMS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "both": lambda x, y: x.exp() @ y.cos(),
    "read again": lambda x, y: x.exp() @ y.cos() + x.exp()[..., :6],
    "of views": lambda x, y: torch.relu(x.exp() * 2 + x) @ (y.mT + 1).sigmoid().mT,
    "infinite": lambda x, y: x.abs().log() @ y,
    "of two": lambda x, y: (x[..., :1] * x).exp() @ (y * y[:, :, :1]).cos(),
    "beside a sum": lambda x, y: torch.baddbmm(x[..., :6], x.exp(), y + 1),
}
WEIGHTS: Final = ("a weight", "weights before")


class Product(nn.Module):
    """Products of what elementwise operators make of [2, 5, K] and [2, K, 6]."""

    def __init__(self, form: str, summed: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.weight, self.gain = form, nn.Parameter(torch.rand(6, summed)), nn.Parameter(torch.rand(summed))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """[2, 5, K], [2, K, 6] -> [2, 5, 6]"""
        if self.form == "a weight":
            return linear(x.abs().log(), self.weight)
        if self.form == "weights before":
            return (x + self.gain) @ (y.mT * self.gain).cos().mT
        return FORMS[self.form](x, y)


def example(summed: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 5, summed).to(device, dtype), torch.randn(2, summed, 6).to(device, dtype)


def compiled(model: nn.Module, inputs: tuple[Tensor, Tensor], *, varies: bool = False) -> pipeline.Compiled:
    summed = Dim("summed", min=6, max=40)
    dims = ({2: summed}, {1: summed}) if varies else None
    return pipeline.default(require_full_compilation=True)(model.eval(), inputs, dynamic_shapes=dims)


def kernels_of_zeros(compiled: pipeline.Compiled) -> list[str]:
    """Kernels that lengthen a tensor and compute something of it."""
    plan = bytes(compiled.engines[0].plan).decode("latin1")
    return re.findall(r"__myl_(?:Move|Tran)*(?:Repl)?Conc(?!Cast_)[A-Z][a-zA-Z]*_0x", plan)


@pytest.mark.parametrize("varies", [False, True], ids=["one size", "varies"])
@pytest.mark.parametrize("form", [*FORMS, *WEIGHTS])
def test_nothing_is_computed_of_zeros(form: str, varies: bool) -> None:
    model, inputs = Product(form, 7), example(7)
    made = compiled(model, inputs, varies=varies and form not in WEIGHTS)
    assert not kernels_of_zeros(made)
    for summed in (7, 6, 33) if varies and form not in WEIGHTS else (7,):
        given = example(summed)
        torch.testing.assert_close(made.module("reference")(*given), model(*given), rtol=1e-4, atol=1e-4)


@PLANS
@quirks.without("padded-zeros")
def test_tensorrt_computes_something_of_zeros() -> None:
    """Else it has learned it, and `pipeline.quirks.zero_padded_k` is of no use."""
    assert kernels_of_zeros(compiled(Product("both", 7), example(7)))


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (lambda x, y: x.exp() * 2, {0.0, 2.0}),
        (lambda x, y: x.clamp(min=1.5).mT, {0.0, 1.5}),
        (lambda x, y: x.log(), {0.0, -math.inf}),
        (lambda x, y: (x * 3).relu().tanh(), {0.0}),
        (lambda x, y: x.exp() - 1, {0.0, -1.0}),
        (lambda x, y: x.exp() * y, {0.0}),
        (lambda x, y: (x.exp() * y).cos(), {0.0, 1.0}),
        (lambda x, y: x.softmax(-1), {0.0}),
        (lambda x, y: x.softmax(-1).cos(), {0.0, 1.0}),
        (lambda x, y: x, {0.0}),
    ],
)
def test_what_is_computed_of_zeros(of: Callable[[Tensor, Tensor], Tensor], values: set[float]) -> None:
    class Made(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return of(x, y)

    graph = pipeline.capture(Made().eval(), (torch.randn(3, 4), torch.randn(3, 4))).graph
    (made,) = graph.output_node().all_input_nodes
    assert values_at_padding(made) == values


class Plain(nn.Module):
    """A product in which zeros stay zeros."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x * 2).relu() @ y.cos()


@pytest.mark.parametrize(("model", "summed"), [(Product("both", 6), 6), (Plain(), 7)], ids=["even", "zeros"])
def test_other_products_are_as_they_were(model: nn.Module, summed: int) -> None:
    assert "SLICE" not in compiled(model, example(summed)).networks[0].kinds()
