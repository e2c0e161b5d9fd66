"""Capture traces a model once: counted in operators that torch dispatches, not in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import pipeline
from benchmarks import zoo
from examples.models import Case, small

MOST = 1.2
"""What capture may dispatch, in multiples of torch.export's own call."""


def architecture(name: str, task: str) -> Callable[[], Case]:
    every = (a for table in zoo.TABLES for a in zoo.architectures(table))
    return next(a for a in every if (a.name, a.task) == (name, task)).case


class Recurrent(torch.nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, S, 4] -> [B, S, 5]"""
        y: torch.Tensor = self.lstm(x)[0]
        return y.relu_()


def recurrent() -> Case:
    return Case("lstm", Recurrent().eval(), {"x": torch.randn(2, 6, 4)}, {"x": {0: torch.export.Dim("n", max=8)}})


class Standardized(torch.nn.Conv2d):
    """A convolution with weights of mean 0 and variance 1, by a batch norm in training, as timm and BiT have them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 3, H, W] -> [B, 8, H - 2, W - 2]"""
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = functional.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-8)
        return functional.conv2d(x, weight.reshape_as(self.weight), self.bias)


def standardized() -> Case:
    shapes = {"x": {0: torch.export.Dim("n", max=8)}}
    return Case("standardized", Standardized(3, 8, 3).eval(), {"x": torch.randn(2, 3, 8, 8)}, shapes)


CASES: dict[str, Callable[[], Case]] = {
    "writes to slices of a mask": lambda: small("swin"),
    "in-place arithmetic on views": architecture("deberta", "encoder"),
    "a cache in buffers": architecture("gpt2", "decode step"),
    "a size that must not be 1": architecture("levit", "classification"),
    "a size that must not be 1, beside derived ones": architecture("mobilevitv2", "classification"),
    "a batch norm of weights, without running statistics": standardized,
    "nothing special": lambda: small("llama"),
    "a recurrence": recurrent,
}


class Cropped(torch.nn.Module):
    """Cuts at a height that it makes an `int` of, as mobilenet_v2 of transformers does: the example's, in a trace."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 4 * H] -> [B, 4 * H]"""
        return x + torch.arange(int(x.shape[1])).sin()


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operators that torch is given to trace."""
    seen: list[Any] = []
    own = FakeTensorMode.dispatch

    def counted(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(func)
        return own(self, func, *args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "dispatch", counted)
    return seen


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_traced_once(name: str, dispatched: list[Any]) -> None:
    case = CASES[name]()
    dispatched.clear()
    with torch.no_grad():
        torch.export.export(case.model, (), case.kwargs, dynamic_shapes=case.dynamic_shapes, strict=False)
    theirs = len(dispatched)
    dispatched.clear()
    pipeline.capture(case.model, (), case.kwargs, case.dynamic_shapes)
    assert len(dispatched) <= MOST * theirs, (len(dispatched), theirs)


def test_dynamo_comes_next_where_a_trace_fixed_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    own = torch.export.export

    def noted(*args: Any, strict: bool, **kwargs: Any) -> Any:
        seen.append(strict)
        return own(*args, strict=strict, **kwargs)

    monkeypatch.setattr(torch.export, "export", noted)
    size = 4 * torch.export.Dim("n", min=1, max=8)
    program = pipeline.capture(Cropped(), (torch.randn(2, 12),), dynamic_shapes=({1: size},))
    assert seen == [False, True]
    assert [r.max for r in program.inputs[0].ranges] == [2, 32]
