"""TensorRT-RTX forgets to write some outputs, and ours are asked for so that it does not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipeline
from benchmarks.kernels import CAPABILITY, unwritten
from pipeline.trt import CAPABILITIES

pytestmark = pytest.mark.skipif(
    CAPABILITIES.flavour != "tensorrt_rtx", reason="the plans of TensorRT-RTX hold the sources of its kernels"
)

X = torch.randn(10, 4)


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """[10, 4] -> several"""
        return self.function(x)


def read_by_one_that_two_read(x: Tensor) -> Sequence[Tensor]:
    a = x.exp()
    b = a.sin()
    return a, b, b.relu(), b.exp()


def the_first_comes_last(x: Tensor) -> Sequence[Tensor]:
    return read_by_one_that_two_read(x)[::-1]


def a_view_among_them(x: Tensor) -> Sequence[Tensor]:
    a = x.exp()
    b = a * 2
    return a, b, b.clone(), b.view(-1)


def added_to_its_copy(x: Tensor) -> Sequence[Tensor]:
    """As in the random program that found it."""
    a = x + 0
    b = (x + 1 + a).clamp(-4, 4)
    return a, b, b.clone(), b.view(-1)


def of_another_shape(x: Tensor) -> Sequence[Tensor]:
    a = x.view(-1)
    b = a.relu()
    return a, b, b.exp(), a.relu()


def in_two_shapes(x: Tensor) -> Sequence[Tensor]:
    a = x.view(-1)
    b = a + a
    c = b.view(10, 4)
    d = c.relu()
    return b, c, d, d.exp(), d.clone()


def of_another_dtype(x: Tensor) -> Sequence[Tensor]:
    a = x.exp()
    b = a * 2
    return a, b, b.half(), b.view(-1)


FUNCTIONS = (
    read_by_one_that_two_read,
    the_first_comes_last,
    a_view_among_them,
    added_to_its_copy,
    of_another_shape,
    in_two_shapes,
    of_another_dtype,
)


def plan(function: Callable[[Tensor], Any]) -> bytes:
    compile = pipeline.default(min_block_size=1, require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return bytes(compile(Function(function).eval(), args=(X,)).engines[0].plan)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_output_is_written(function: Callable[[Tensor], Any]) -> None:
    assert unwritten(plan(function)) == ()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_output_that_is_read_too_may_be_forgotten(
    function: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What our networks would be without layers for such outputs. When this fails, TensorRT was mended."""
    monkeypatch.setattr(
        importlib.import_module("pipeline.stages.convert")._Conversion, "names_read", lambda self: frozenset()
    )
    assert unwritten(plan(function))
