"""Record torch's autocast in a capture of a model, and switch it off in calls of a compiled program.
A model captured under autocast is compiled with its casts; a compiled program ignores the autocast of its caller."""

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
"""Return whether autocast is on for any device; torch's function without a wrapper, since every call uses it."""


def without_autocast() -> ExitStack:
    """Return a context in which autocast is off."""
    return autocast_with_dtypes({device: None for device in _DEVICES if torch.is_autocast_enabled(device)})


def current_autocast_dtypes() -> dict[str, torch.dtype]:
    """Return the dtypes of the current autocast, by device type."""
    return {device: torch.get_autocast_dtype(device) for device in _DEVICES if torch.is_autocast_enabled(device)}


def copy_under_autocast(model: torch.nn.Module) -> torch.nn.Module:
    """Return a shallow copy of the model whose ``forward`` enters the current autocast, for a capture to record."""
    dtypes = current_autocast_dtypes()
    inside = copy.copy(model)
    forward = vars(model).get("forward") or MethodType(type(model).forward, inside)
    inside.forward = functools.update_wrapper(functools.partial(_call_under_autocast, dtypes, forward), model.forward)
    return inside


def _call_under_autocast(
    dtypes: Mapping[str, torch.dtype | None], forward: Callable[..., object], /, *args: object, **kwargs: object
) -> Leaf:
    """Call ``forward`` under autocast with a dtype for each device type; None turns autocast off.

    `copy_under_autocast` binds ``forward`` by a partial, not a closure: ``deepcopy`` of the module copies the partial,
    with the ``forward`` of the new module in it.
    """
    with autocast_with_dtypes(dtypes):
        return forward(*args, **kwargs)


def autocast_with_dtypes(dtypes: Mapping[str, torch.dtype | None]) -> ExitStack:
    """Return a context with autocast in these dtypes by device; autocast is off where the dtype is None."""
    stack = ExitStack()
    for device, dtype in dtypes.items():
        stack.enter_context(torch.autocast(device, dtype, enabled=dtype is not None))
    return stack
