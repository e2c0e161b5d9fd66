"""A dim of one element is not reduced: the kernels of plans, run on this CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import pad

import pipeline
from benchmarks.emulator import COMPILER, emulated
from pipeline.impl import reduce
from pipeline.trt import CAPABILITIES

pytestmark = [
    pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="plans of another TensorRT hold no sources"),
    pytest.mark.skipif(COMPILER is None, reason="kernels are compiled for the CPU, with a C++ compiler"),
]
COMPILE = pipeline.default(require_full_compilation=True, min_block_size=1, compute_capabilities=("8.0",))


class SumOfOne(torch.nn.Module):
    """A sum along a dim of one element of what is padded and added."""

    def __init__(self, keepdim: bool = False) -> None:
        super().__init__()
        self.keepdim = keepdim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 4, 1, N] -> [2, 4, N]"""
        before = pad(x, (1, 0))[..., :-1]
        return ((x + before) * x.cos()).sum(2, keepdim=self.keepdim)


def error(model: torch.nn.Module, x: torch.Tensor) -> float:
    """Of the engine's kernels, relative to the largest value."""
    compiled = COMPILE(model.eval(), args=(x,))
    with emulated():
        run = compiled.module("reference")
    exact = model(x.double())
    return float((run(x).double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("keepdim", [False, True])
def test_kernels_agree_with_eager(keepdim: bool) -> None:
    assert error(SumOfOne(keepdim), torch.randn(2, 4, 1, 17)) < 1e-5


class NormOfOne(SumOfOne):
    """What has one channel, each divided by its magnitude."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 4, 1, N] -> [2, 4, N, 1]"""
        padded = (x + pad(x, (1, 0))[..., :-1]) * x.cos()
        return functional.rms_norm(padded.transpose(2, 3), (1,), eps=1e-5)


def test_norms_of_one_channel_agree_with_eager() -> None:
    assert error(NormOfOne(), torch.randn(2, 4, 1, 17)) < 1e-5


def test_they_do_not_if_it_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a TensorRT has them right, it needs none of this."""
    monkeypatch.setattr(reduce, "reduce", reduce._pad_and_reduce)
    assert error(SumOfOne(), torch.randn(2, 4, 1, 17)) > 0.1


def test_other_dims_are_reduced() -> None:
    x = torch.randn(3, 1, 5)
    for dims, keepdim in (((0, 1), False), ((1, 2), True), ((-2,), False), ((0, 1, 2), False)):
        made = COMPILE(_Mean(dims, keepdim).eval(), args=(x,))
        assert made.networks[0].kinds().get("REDUCE", 0) == (dims != (-2,))
        torch.testing.assert_close(made.module("reference")(x), x.mean(dims, keepdim))


class _Mean(torch.nn.Module):
    def __init__(self, dims: tuple[int, ...], keepdim: bool) -> None:
        super().__init__()
        self.dims, self.keepdim = dims, keepdim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(self.dims, self.keepdim)


class _Of(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.function(*given)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        pytest.param(lambda x: x.log_softmax(-1), (torch.randn(3, 1),), id="log_softmax"),
        pytest.param(lambda x, y: x @ y, (torch.randint(9, (3, 1)), torch.randint(9, (1, 5))), id="a product of ints"),
        pytest.param(lambda x: functional.max_pool2d(x, 1, 2), (torch.randint(9, (1, 2, 4, 4)),), id="pooling of ints"),
        pytest.param(
            lambda x, mask: functional.scaled_dot_product_attention(x, x[:, :, :1], x[:, :, :1], mask),
            (torch.randn(2, 4, 3, 8), torch.tensor([[True], [False], [True]]).expand(2, 1, 3, 1).clone()),
            id="attention to one key",
        ),
    ],
)
def test_nothing_of_ours_reduces_one_element(
    function: Callable[..., torch.Tensor], given: tuple[torch.Tensor, ...]
) -> None:
    made = COMPILE(_Of(function).eval(), args=given)
    assert "REDUCE" not in made.networks[0].kinds()
    torch.testing.assert_close(made.module("reference")(*given), function(*given))
