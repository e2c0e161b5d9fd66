"""TensorRT-RTX 1.6.1 gets a transposed convolution wrong whose kernel rounds to bfloat16 and widens the result again,
on an H100, so that our networks keep it from that. Plans tell which kernels there will be."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY
from pipeline import quirks
from pipeline.quirks import is_avoided
from pipeline.quirks.plan_detectors import find_rounded_deconvolutions

FORMS = ("two", "normed", "normed, alone", "alone", "in float32")
"""What is behind a transposed convolution."""


class Upward(nn.Module):
    """Transposed convolutions between others."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.first = form, nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.norm = nn.ConvTranspose2d(16, 32, 2, 2), nn.BatchNorm2d(32)
        self.further, self.last = nn.ConvTranspose2d(32, 32, 2, 2), nn.Conv2d(32, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8, H, W] -> [N, 32, 2 H, 2 W], or twice as many rows and columns"""
        y = self.up(self.first(x))
        if self.form == "in float32":
            return y.float() * 2
        if "normed" in self.form:
            y = nn.functional.gelu(self.norm(y))
        return self.last(y if "alone" in self.form else self.further(y))


def compiled(form: str) -> pipeline.Compiled:
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return compile(Upward(form).eval().bfloat16(), args=(torch.randn(2, 8, 8, 8).bfloat16(),))


@pytest.mark.parametrize("form", FORMS)
@quirks.assume("rounded-deconvolutions")
def test_nothing_is_computed_behind_the_rounding(form: str) -> None:
    made, x = compiled(form), torch.randn(2, 8, 8, 8).bfloat16()
    assert not find_rounded_deconvolutions(bytes(made.engines[0].plan))
    torch.testing.assert_close(made.module("reference")(x), Upward(form).eval().bfloat16()(x), rtol=0.05, atol=0.05)


@pytest.mark.skipif(not is_avoided("rounded-deconvolutions"), reason="this TensorRT has such kernels right")
@pytest.mark.parametrize("form", ["two", "normed"])
@quirks.without("rounded-deconvolutions")
def test_what_would_be_wrong_is_warned_of(form: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ((kernel, tensor), *_) = find_rounded_deconvolutions(bytes(compiled(form).engines[0].plan))
    assert f"TensorRT's kernel {kernel} rounds to bfloat16 before it gives {tensor}" in caplog.text


class Grouped(nn.Module):
    """A transposed convolution of groups, as Mimi's decoder has."""

    def __init__(self, groups: int, kernel: int, stride: int, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.ConvTranspose1d(
            8, 8, kernel, stride, padding=1, output_padding=stride - 1, groups=groups, bias=bias
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8, L] -> [N, 8, about stride L]"""
        return self.up(x)


GROUPS = [(groups, kernel, stride) for groups in (1, 4, 8) for kernel, stride in ((3, 1), (4, 2), (8, 4), (2, 2))]


@pytest.mark.parametrize("varies", [True, False], ids=["varies", "one length"])
@pytest.mark.parametrize(("groups", "kernel", "stride"), GROUPS)
@quirks.assume("grouped-deconvolutions")
def test_groups_have_a_stride_of_1_where_a_size_varies(groups: int, kernel: int, stride: int, varies: bool) -> None:
    model, dims = Grouped(groups, kernel, stride, True).eval(), [{2: Dim("length", min=3, max=40)}] if varies else None
    compiled = pipeline.default(require_full_compilation=True)(model, (torch.randn(2, 8, 14),), dynamic_shapes=dims)
    for length in (14, 3, 40) if varies else (14,):
        x = torch.randn(2, 8, length)
        torch.testing.assert_close(compiled.module("reference")(x), model(x), rtol=1e-5, atol=1e-5)
    [layer] = (each for each in compiled.networks[0].layers if each.kind == "DECONVOLUTION")
    assert layer.attribute("stride_nd")[-1] == (1 if varies and groups > 1 else stride)
