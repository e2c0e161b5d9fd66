"""TensorRT-RTX forgets to write some outputs, and ours are asked for so that it does not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY
from pipeline.quirks.plan_detectors import find_kernel_offsets, find_unwritten_results
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


def forgotten(plan: bytes) -> tuple[tuple[str, str], ...]:
    return find_unwritten_results(plan, find_kernel_offsets(plan))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_output_is_written(function: Callable[[Tensor], Any], caplog: pytest.LogCaptureFixture) -> None:
    assert forgotten(plan(function)) == ()
    assert "never writes" not in caplog.text


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_output_that_is_read_too_is_forgotten(
    function: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What our networks would be without layers for such outputs, and what building them says. When this fails,
    TensorRT was mended."""
    conversion = importlib.import_module("pipeline.stages.convert")._Conversion
    monkeypatch.setattr(conversion, "names_of_read_tensors", lambda self: frozenset())
    found = forgotten(plan(function))
    assert found
    for kernel, tensor in found:
        assert f"engine_0: TensorRT's kernel {kernel} never writes {tensor}, so results may be wrong" in caplog.text


class Gates(nn.Module):
    """Values that other kernels read as well, forgotten where a kernel has five of them: none is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(5))

    def forward(self, x: Tensor) -> list[Tensor]:
        """[16, 8] -> five of these"""
        a = x + x
        b = a.sin()
        c = b.relu()
        return [product(y) for product, y in zip(self.products, (a, b, c, c + x, c.sin()), strict=True)]


def test_what_is_forgotten_inside_an_engine_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    compile = pipeline.default(min_block_size=1, compute_capabilities=(CAPABILITY,))
    compiled = compile(Gates().eval(), args=(torch.randn(16, 8),))
    found = forgotten(bytes(compiled.engines[0].plan))
    assert len(found) == caplog.text.count("never writes") == 2


class Columns(nn.Module):
    """Three results of one kernel, two of them without elements."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """[N, 1], [N, 1] -> [N, 0], [N, 0], [N, 1]"""
        none = x[:, 1:]
        return torch.minimum(none, y[:, 1:]), none * 0.5, nn.functional.pad(none, (1, 0)) + y


@pytest.mark.parametrize("shapes", [None, ({0: Dim("n", max=9)},) * 2], ids=["static", "dynamic"])
def test_tensors_without_elements_are_written_by_no_kernel(shapes: Any, caplog: pytest.LogCaptureFixture) -> None:
    compile = pipeline.default(min_block_size=1, compute_capabilities=(CAPABILITY,))
    compiled = compile(Columns().eval(), args=(torch.randn(5, 1), torch.randn(5, 1)), dynamic_shapes=shapes)
    assert forgotten(bytes(compiled.engines[0].plan)) == ()
    assert "never writes" not in caplog.text


def test_what_has_no_sources_is_not_looked_at() -> None:
    assert forgotten(b"plan") == ()
