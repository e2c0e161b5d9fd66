"""Codes of activations become int32 where that gives the same numbers, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import pipeline

Tensor = torch.Tensor
CODES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "clamped": (lambda x: x.round().clamp(-128, 127).to(torch.int8).reshape(-1, 64).float(), True),
    "beyond the range": (lambda x: x.round().clamp(-200, 200).to(torch.int8).float(), False),
    "not clamped": (lambda x: x.round().to(torch.int8).float(), False),
    "computed with": (lambda x: (x.round().clamp(-128, 127).to(torch.int8) + 1).float(), False),
}


class Coded(nn.Module):
    """A linear layer with an INT8 weight of what a function makes of its input."""

    def __init__(self, of: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.of, self.weight = of, nn.Parameter(torch.randn(32, 64))

    def forward(self, x: Tensor) -> Tensor:
        """Rows of 32 for rows of 64."""
        weight = torch.fake_quantize_per_tensor_affine(self.weight, 0.02, 0, -128, 127)
        return nn.functional.linear(self.of(x), weight)


@pytest.mark.parametrize("name", CODES)
def test_codes_are_int32_where_they_were_clamped_to_int8(name: str) -> None:
    of, is_wide = CODES[name]
    program = pipeline.default().until("decompose")(Coded(of).eval(), args=(100 * torch.randn(4, 64),))
    cast = {node.meta["val"].dtype for node in program.graph.nodes if node.op == "call_function"}
    assert (torch.int32 in cast, torch.int8 in cast) == (is_wide, not is_wide)


def test_a_cast_to_int8_and_back_cuts_digits_off() -> None:
    """It was taken for a pair of casts to float8."""

    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (3 * x).to(torch.int8).float() * 0.5

    x = torch.linspace(-40, 40, 64).reshape(4, 16)
    assert torch.equal(pipeline.default()(Cut().eval(), args=(x,))(x), Cut()(x))
