"""Copy a module and replace some of the objects that it holds."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch.overrides import TorchFunctionMode

from pipeline.aten.types import Argument, Target


def copied(model: torch.nn.Module, others: Mapping[int, object]) -> torch.nn.Module:
    """Return a copy that shares the model's tensors; ``others`` (by the ids of the originals) replace objects.

    Raises:
        Exception: what a ``__deepcopy__`` raises, and TypeError for objects that cannot be copied, such as locks.
    """
    own = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    with _Shared():
        return copy.deepcopy(model, {**own, **others})


class _Shared(TorchFunctionMode):
    """A module that is copied without copying its tensors."""

    def __torch_function__(self, func: Target, types: object, args: Argument = (), kwargs: Argument = None) -> object:
        return args[0] if func is torch.Tensor.__deepcopy__ else func(*args, **(kwargs or {}))
