"""Capture traces a model once: counted in operators that torch dispatches, not in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

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


CASES: dict[str, Callable[[], Case]] = {
    "writes to slices of a mask": lambda: small("swin"),
    "in-place arithmetic on views": architecture("deberta", "encoder"),
    "a cache in buffers": architecture("gpt2", "decode step"),
    "a size that must not be 1": architecture("levit", "classification"),
    "nothing special": lambda: small("llama"),
    "a recurrence": recurrent,
}


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
