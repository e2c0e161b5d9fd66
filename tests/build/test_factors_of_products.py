"""Products that are multiplied by a number: RTX 1.4 confuses the kernels of two whose sizes are known at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import pipeline
from pipeline import quirks
from pipeline.quirks import is_avoided
from pipeline.quirks.plan_detectors import find_confused_matmuls

needed = pytest.mark.skipif(not is_avoided("factors-of-matmuls"), reason="this TensorRT is taken to have them right")
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "factor": lambda y: y * 0.3,
    "two": lambda y: y * 0.3 * 0.5,
    "alpha": lambda y: torch.baddbmm(y.new_ones(()), y, y.mT, alpha=0.3),
    "tanh": lambda y: torch.tanh(y * 0.3),
    "gelu": torch.nn.functional.gelu,
    "magnitude": lambda y: y.abs() * 0.3,
    "ReLU": lambda y: torch.relu(y) * 0.3,
    "transposed": lambda y: y.mT * 0.3,
    "quotient": lambda y: y / 3.0,
    "more dims": lambda y: (y * torch.full((1, 1, 1, 1), 0.3, dtype=y.dtype))[0],
    "sum": lambda y: y * 0.3 + 0.1,
    "weight": lambda y: y * torch.ones(1, 1, dtype=y.dtype).exp(),
    "leaky": lambda y: torch.nn.functional.leaky_relu(y, 0.3),
}


class Chained(torch.nn.Module):
    """A product, one of `FORMS`, and both once more."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.made = FORMS[form]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, N, K] -> [2, N, N]"""
        y = self.made(torch.atan(x) @ x.mT)
        return self.made(y @ y.mT)


def compiled(model: torch.nn.Module, dtype: torch.dtype, **settings: Any) -> pipeline.Compiled:
    """For rows and columns that vary on their own."""
    x = torch.randn(2, 4, 7, dtype=dtype)
    sizes = {1: Dim("rows", min=1, max=64), 2: Dim("columns", min=1, max=64)}
    return pipeline.default(compute_capabilities=("8.9",), **settings)(model.eval(), args=(x,), dynamic_shapes=(sizes,))


@needed
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_no_two_kernels_have_one_name_and_other_arguments(form: str, dtype: torch.dtype) -> None:
    made = compiled(Chained(form), dtype)
    assert not find_confused_matmuls(bytes(made.engines[0].plan))
    for rows, columns in ((4, 4), (3, 8)):
        x = torch.randn(2, rows, columns, dtype=dtype) / 4
        torch.testing.assert_close(made.module("reference")(x), Chained(form)(x), rtol=2e-2, atol=2e-2)


@needed
@quirks.without("factors-of-matmuls")
def test_what_would_be_confused_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    made = compiled(Chained("factor"), torch.float32)
    assert find_confused_matmuls(bytes(made.engines[0].plan)) == ("__myl_FcMul",)
    assert "kernel __myl_FcMul may take another one's factor" in caplog.text


def flattened(made: pipeline.Compiled) -> bool:
    """Whether the larger of something and itself, in one dim, is in a network."""
    largest = [layer for layer in made.networks[0].layers if "op=MAX" in str(layer)]
    return any(len(tensor.shape) == 1 for layer in largest for tensor in layer.outputs)


class Softened(torch.nn.Module):
    """An attention by hand, whose scores something else may read as well."""

    def __init__(self, other: bool = False) -> None:
        super().__init__()
        self.other = other

    def forward(self, x: torch.Tensor) -> Any:
        """[2, N, K] -> [2, N, K]"""
        scores = x @ x.mT
        result = torch.softmax(scores * 0.3, -1) @ x
        return (result, scores * 0.5) if self.other else result.flatten(1)


@needed
def test_only_products_of_varying_sizes_without_a_softmax_are_by_themselves() -> None:
    fixed = pipeline.default()(Chained("factor").eval(), args=(torch.randn(2, 64, 64),))
    assert not flattened(fixed)
    assert flattened(compiled(Chained("factor"), torch.float32))
    assert not flattened(compiled(Softened(), torch.float32))
    assert flattened(compiled(Softened(other=True), torch.float32))
    assert flattened(compiled(Softened(), torch.float32, torch_executed_ops={"aten.softmax.int"}, min_block_size=1))


class Streams(torch.nn.Module):
    """Rows of two kinds, each through layers of its own that are multiplied in their kernels: text beside an image."""

    def __init__(self) -> None:
        super().__init__()
        self.widened, self.narrowed = (
            torch.nn.ModuleList(torch.nn.Linear(*w) for _ in "ab") for w in ((32, 128), (128, 32))
        )

    def forward(self, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[1, N, 32], [1, M, 32] -> the same"""
        found = []
        for x, widened, narrowed in zip(rows, self.widened, self.narrowed, strict=True):
            found.append(x + narrowed(torch.nn.functional.gelu(widened(x), approximate="tanh")) * 0.3)
        return tuple(found)


STREAMS = {0: None, 1: {1: Dim("rows", min=2, max=64)}}
"""The second stream's rows vary."""


def streams(dtype: torch.dtype) -> tuple[Streams, tuple[torch.Tensor, torch.Tensor]]:
    """Two streams of 20 rows each."""
    torch.manual_seed(0)
    return Streams().eval().to(dtype), (torch.randn(1, 20, 32, dtype=dtype), torch.randn(1, 20, 32, dtype=dtype))


@needed
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_layers_whose_sizes_are_known_have_other_names(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    model, rows = streams(dtype)
    compile, shapes = pipeline.default(compute_capabilities=("8.9",)), (tuple(STREAMS.values()),)
    made = compile(model, args=rows, dynamic_shapes=shapes)
    plan = bytes(made.engines[0].plan)
    assert not find_confused_matmuls(plan) and b"__myl_FcAddMaxMul" in plan, "no other kernel is needed"
    torch.testing.assert_close(made.module("reference")(*rows), model(*rows), rtol=2e-2, atol=2e-2)
    assert "may take" not in caplog.text
    assert "op=MAX" not in str(compile(model, args=rows).networks[0]), "nothing varies"
    with quirks.without("factors-of-matmuls"):
        assert find_confused_matmuls(bytes(compile(model, args=rows, dynamic_shapes=shapes).engines[0].plan))
    assert "may take another one's factor" in caplog.text
