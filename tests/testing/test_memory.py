"""Results of any type that is registered as a pytree are named and compared."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import nn
from torch.utils._pytree import register_pytree_node

from pipeline.testing import TensorSpec, check_model
from pipeline.testing.memory import named_leaves


@frozen
class Pair:
    """As libraries return their results: registered without names for its parts."""

    first: torch.Tensor
    second: torch.Tensor


register_pytree_node(Pair, lambda p: ([p.first, p.second], None), lambda leaves, _: Pair(*leaves))


class Both(nn.Module):
    """Gives a pair."""

    def forward(self, x: torch.Tensor) -> Pair:
        """[N, 4] -> [N, 4] twice"""
        return Pair(x + 1, x * 2)


def test_leaves_without_keys_are_counted() -> None:
    assert [where for where, _ in named_leaves({"a": torch.zeros(1), "b": [1]})[0]] == ["['a']", "['b'][0]"]
    assert [where for where, _ in named_leaves(Pair(torch.zeros(1), torch.ones(1)))[0]] == ["[0]", "[1]"]


def test_a_model_may_return_them() -> None:
    check_model(Both, (TensorSpec(("n", 4)),), sizes={"n": (1, 2, 4)}, min_block_size=1)
