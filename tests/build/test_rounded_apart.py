"""Products in float32 that are rounded to halves: RTX 1.4 rounds some of them in a kernel of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import pipeline
from pipeline import quirks


class Wide(torch.nn.Module):
    """A product of what a function makes of halves in float32."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[2, 5, 8], [2, 8, 6] -> [2, 5, 6]"""
        return (self.function(x.float()) @ y.float()).to(x.dtype)


def behind(function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> list[str]:
    """The kinds of the layers behind the product."""
    inputs = torch.randn(2, 5, 8).to(dtype), torch.randn(2, 8, 6).to(dtype)
    made = pipeline.default(require_full_compilation=True)(Wide(function).eval(), inputs)
    kinds = [layer.kind for layer in made.networks[0].layers]
    return kinds[kinds.index("MATRIX_MULTIPLY") + 1 :]


@pytest.fixture(autouse=True)
def rounding_is_wrong() -> Iterator[None]:
    with quirks.assume("halves-behind-matmuls"):
        yield


def test_it_is_rounded_in_another_kernel_where_a_factor_was_computed() -> None:
    assert behind(torch.exp, torch.float16) == ["ELEMENTWISE", "CAST"]


def test_a_product_of_halves_is_one_to_tensorrt() -> None:
    assert behind(lambda x: x, torch.float16) == ["CAST"]


def test_in_bfloat16_the_cast_is_not_the_last() -> None:
    assert behind(torch.exp, torch.bfloat16) == ["CAST", "ELEMENTWISE"]
