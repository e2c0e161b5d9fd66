"""Handle autocast around a capture or call. A model captured under autocast computes as it does there; a compiled
program keeps its dtypes, wherever it is called."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MethodType

import torch

from pipeline.aten.types import Leaf

_DEVICES = ("cpu", "cuda")


is_autocast_on: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any device. Every call asks, so it is torch's own function and no other around it."""


def without_autocast() -> ExitStack:
    """A context without autocast."""
    return autocast_in({device: None for device in _DEVICES if torch.is_autocast_enabled(device)})


def autocast_dtypes() -> dict[str, torch.dtype]:
    """The dtypes of the current autocast, by device."""
    return {device: torch.get_autocast_dtype(device) for device in _DEVICES if torch.is_autocast_enabled(device)}


def under_autocast(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model with the current autocast inside ``forward``, where torch.export sees it. The tensors are
    shared, and the model is not changed."""
    dtypes = autocast_dtypes()
    inside = copy.copy(model)
    forward = vars(model).get("forward") or MethodType(type(model).forward, inside)
    inside.forward = functools.update_wrapper(functools.partial(_within, dtypes, forward), model.forward)
    return inside


def _within(
    dtypes: Mapping[str, torch.dtype | None], forward: Callable[..., object], /, *args: object, **kwargs: object
) -> Leaf:
    """A call under autocast. What it is of is an argument and no closure: copies of the module then call their own."""
    with autocast_in(dtypes):
        return forward(*args, **kwargs)


def autocast_in(dtypes: Mapping[str, torch.dtype | None]) -> ExitStack:
    """A context with autocast in these dtypes by device; without it for None."""
    stack = ExitStack()
    for device, dtype in dtypes.items():
        stack.enter_context(torch.autocast(device, dtype, enabled=dtype is not None))
    return stack
