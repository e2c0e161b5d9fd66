"""The copy of a module to call: its own parameters, state of its own, what is shared stays shared."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.verification.module_comparison import copy_sharing_parameters


class Stateful(nn.Module):
    """Buffers, state in Python, an empty mapping and a view that two parts share."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LSTM(4, 4)])
        self.register_buffer("count", torch.zeros(3))
        self.seen: dict[str, Any] = {}
        self.parts[0].seen = self.seen
        self.row = self.count[1:]
        self.history = [[1, 2], (3, torch.ones(2))]
        self.derived = self.parts[0].weight * 2  # no leaf
        self.again = self.parts[0]


def test_parameters_are_the_same_and_all_else_is_its_own() -> None:
    model = Stateful()
    made = copy_sharing_parameters(model)
    assert type(made) is Stateful and made is not model
    assert all(a is b for a, b in zip(made.parameters(), model.parameters(), strict=True))
    for a, b in zip(made.buffers(), model.buffers(), strict=True):
        assert a is not b and torch.equal(a, b) and a.data_ptr() != b.data_ptr()
    assert made.history[0] == [1, 2] and made.history[0] is not model.history[0]
    made.history[0].append(3)
    made.parts[1].running_mean.add_(1)
    assert model.history[0] == [1, 2] and not model.parts[1].running_mean.any()
    assert torch.equal(made.derived, model.derived) and made.derived is not model.derived


def test_what_is_shared_stays_shared() -> None:
    made = copy_sharing_parameters(Stateful())
    assert made.again is made.parts[0] and made.seen is made.parts[0].seen
    made.count.fill_(5)
    assert made.row.tolist() == [5, 5]


def test_hooks_go_with_the_copy_and_new_ones_stay_there() -> None:
    model, called = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), list[str]()
    model[0].register_forward_hook(lambda *_: called.append("old"))
    made = copy_sharing_parameters(model)
    made[1].register_forward_hook(lambda *_: called.append("new"))
    model(torch.ones(2))
    assert called == ["old"] and not model[1]._forward_hooks
    made(torch.ones(2))
    assert called == ["old", "old", "new"]


class Own(nn.Module):
    """Says itself how it is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Own:
        return self


def test_a_class_decides_how_it_is_copied() -> None:
    model = nn.ModuleList([Own(), nn.LSTM(2, 2)])
    made = copy_sharing_parameters(model)
    assert made[0] is model[0]
    assert [id(w) for w in made[1]._flat_weights] == [id(p) for p in model[1].parameters()]
    with torch.no_grad():
        x = torch.randn(3, 1, 2)
        torch.testing.assert_close(made[1](x), copy.deepcopy(model[1])(x))


def test_what_cannot_be_copied_raises() -> None:
    model = nn.Linear(2, 2)
    model.lock = iter(range(3)), (i for i in range(3))
    with pytest.raises(TypeError, match="generator"):
        copy_sharing_parameters(model)
