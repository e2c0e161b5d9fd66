"""Averages of one tensor that differ in what they count alone have a kernel each: TensorRT takes two layers for one."""

from __future__ import annotations

import pytest
import torch

import pipeline
from benchmarks.kernels import CAPABILITY, of
from pipeline.trt import CAPABILITIES

pytestmark = pytest.mark.skipif(
    CAPABILITIES.flavour != "tensorrt_rtx" or CAPABILITIES.version_tuple[:2] != (1, 4),
    reason="the plans of TensorRT-RTX 1.4 tell what its kernels are",
)


class Averages(torch.nn.Module):
    """Averages of what a convolution gives, which count the border or do not."""

    def __init__(self, *counting: bool) -> None:
        super().__init__()
        self.convolution, self.counting = torch.nn.Conv2d(4, 4, 3, padding=1), counting

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.convolution(x)
        return [torch.nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=each) for each in self.counting]


def kernels(dtype: torch.dtype, *counting: bool) -> tuple[int, int]:
    """How many pool, and how many there are."""
    compile = pipeline.default(compute_capabilities=(CAPABILITY,))
    found = of(compile(Averages(*counting).eval().to(dtype), args=(torch.randn(2, 4, 8, 8).to(dtype),)))
    return sum(kernel.kind == "avgpool" for kernel in found), len(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_two_averages_have_two_kernels(dtype: torch.dtype) -> None:
    assert kernels(dtype, True, False)[0] == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_one_average_costs_what_the_other_does(dtype: torch.dtype) -> None:
    assert kernels(dtype, False) == kernels(dtype, True)
