"""What random programs found, each as small as it was shrunk: they compile, and are as in eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipeline.testing import TensorSpec, check_model

SIZES = {"n": (2, 3, 7)}


class Changed(nn.Module):
    """Returns the input that it changed, and a value of it that is no longer the input."""

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4] -> [N, 4], twice"""
        before = x + 0
        x.fill_(1)
        return {"x": x, "copy": x.clone(), "before": before}


def test_a_changed_input_that_is_returned_is_the_input() -> None:
    check_model(Changed, (TensorSpec(("n", 4)),), sizes=SIZES)


class Copied(nn.Module):
    """Returns what it wrote to the input, which is not the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        y = x * 2
        x.copy_(y)
        return y


@pytest.mark.parametrize("entry", ["dims", "exported"])
def test_what_was_written_to_an_input_is_not_the_input(entry: Any) -> None:
    check_model(Copied, (TensorSpec(("n", 4)),), sizes=SIZES, entry=entry)
