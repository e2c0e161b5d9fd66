"""Copy a module, with others in place of some of what it holds."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch.overrides import TorchFunctionMode

from pipeline.aten.types import Argument, Target


def copied(model: torch.nn.Module, others: Mapping[int, object]) -> torch.nn.Module:
    """Return a copy with the model's own tensors, and with ``others`` (by the id of what they replace) wherever it
    holds them.

    Raises:
        Exception: what a ``__deepcopy__`` raises, and TypeError for objects that cannot be copied, such as locks.
    """
    own = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    with _Shared():
        return copy.deepcopy(model, {**own, **others})


class _Shared(TorchFunctionMode):
    """While a module is copied: its tensors are not."""

    def __torch_function__(self, func: Target, types: object, args: Argument = (), kwargs: Argument = None) -> object:
        return args[0] if func is torch.Tensor.__deepcopy__ else func(*args, **(kwargs or {}))
