"""Squares of what ReLU gives, after products with a bias, which RTX 1.6.1 computes wrongly in the plain form."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import nn

import pipeline
from pipeline.build.kernels import kernels
from pipeline.impl import elementwise
from pipeline.trt import CAPABILITIES

MAXIMUM = "op=MAX"
FORMS = ("power", "product", "gate", "cube")


class Squared(nn.Module):
    """Normed rows, a product with a bias, ReLU and a square in one of `FORMS`, another product."""

    def __init__(self, form: str, width: int = 64) -> None:
        super().__init__()
        self.form, self.norm = form, nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, width] -> [N, S, width]"""
        y = self.up(self.norm(x))
        above = torch.relu(y)
        made = {"power": lambda: above**2, "product": lambda: above * above, "gate": lambda: y * above}
        return x + self.down(made.get(self.form, lambda: above**3)())


@pytest.mark.parametrize("form", FORMS)
def test_what_relu_gives_is_kept_apart(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a TensorRT that needs it; where TensorRT does, no kernel leaves out ReLU or the bias."""
    monkeypatch.setattr(elementwise, "CAPABILITIES", evolve(CAPABILITIES, squares_after_relu=False))
    x, model = torch.randn(2, 12, 64), Squared(form).eval()
    compiled = pipeline.default(compute_capabilities=("8.9",))(model, args=(x,))
    assert str(compiled.networks[0]).count(MAXIMUM) == 1
    torch.testing.assert_close(compiled.module("reference")(x), model(x))
    if not CAPABILITIES.squares_after_relu:
        assert "__myl_Fc" not in [kernel.name for kernel in kernels(bytes(compiled.engines[0].plan))]


def test_nothing_is_added_where_tensorrt_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "CAPABILITIES", evolve(CAPABILITIES, squares_after_relu=True))
    converted = pipeline.default().until("convert")(Squared("power").eval(), args=(torch.randn(2, 12, 64),))
    assert MAXIMUM not in str(converted.networks[0])
