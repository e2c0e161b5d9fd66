"""fuse_gelu: the forms of GPT-2's activation are one operator; near misses stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.improvements.programs import agree, decomposed, improved, targets


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        """Whatever the function says."""
        return self.function(x)


C = math.sqrt(2 / math.pi)
X = torch.randn(64, generator=torch.Generator().manual_seed(0)) * 3
Form = Callable[[torch.Tensor], torch.Tensor]

FORMS: dict[str, Form] = {
    "gpt2": lambda x: 0.5 * x * (1.0 + torch.tanh(C * (x + 0.044715 * torch.pow(x, 3.0)))),
    "other orders": lambda x: (torch.tanh((x * x * x * 0.044715 + x) * C) + 1) * (x * 0.5),
    "cube as products": lambda x: x * 0.5 * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * (x * (x * x))))),
}
OTHERS: dict[str, Form] = {
    "another factor": lambda x: 0.5 * x * (1.0 + torch.tanh(C * (x + 0.05 * torch.pow(x, 3.0)))),
    "another power": lambda x: 0.5 * x * (1.0 + torch.tanh(C * (x + 0.044715 * torch.pow(x, 2.0)))),
    "another input": lambda x: 0.5 * x.exp() * (1.0 + torch.tanh(C * (x + 0.044715 * torch.pow(x, 3.0)))),
    "another sum": lambda x: 0.5 * x * (2.0 + torch.tanh(C * (x + 0.044715 * torch.pow(x, 3.0)))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_forms_become_one_activation(name: str, dtype: torch.dtype) -> None:
    x = X.to(dtype)
    program = decomposed(Of(FORMS[name]), x)
    after = improved(program, "fuse_gelu")
    assert targets(after) == ["gelu.default"]
    tolerance = 1e-5 if dtype == torch.float32 else 4e-3
    agree(program, after, x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    program = decomposed(Of(OTHERS[name]), X)
    assert str(improved(program, "fuse_gelu")) == str(program)
