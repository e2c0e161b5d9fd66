"""Copy a module in order to call it: with the same parameters, but its own buffers and other state."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from pipeline.aten.types import Argument, Target

ATOMS: Final = (type(None), bool, int, float, str, torch.dtype, torch.device)
HOOKS: Final = ("__deepcopy__", "__copy__", "__getnewargs__", "__getnewargs_ex__")
STATE: Final = ("__new__", "__reduce_ex__", "__reduce__", "__getstate__")
"""The methods by which a class defines how it is copied, and its state."""


def copied(module: torch.nn.Module) -> torch.nn.Module:
    """Return a ``copy.deepcopy`` that shares the module's parameters.

    deepcopy follows twenty fields of each submodule, most of them empty mappings of hooks; for submodules without a
    copying method of their own this function creates them, in a third of the time.
    """
    memo: dict[int, Any] = {id(p): p for p in module.parameters()}
    parts = [part for part in module.modules() if _is_plain(type(part))]
    memo |= {id(part): object.__new__(type(part)) for part in parts}
    with _Detached():
        for part in parts:
            memo[id(part)].__setstate__({name: _value(value, memo) for name, value in part.__getstate__().items()})
        return copy.deepcopy(module, memo)


def _is_plain(kind: type) -> bool:
    """Return whether a module class has the default copy protocol and the state that ``torch.nn.Module`` defines."""
    known = all(getattr(kind, name) is getattr(torch.nn.Module, name) for name in STATE)
    return known and not any(hasattr(kind, name) for name in HOOKS)


def _value(value: object, memo: dict[int, Any]) -> object:
    if type(value) in ATOMS:
        return value
    if type(value) in (dict, OrderedDict) and not value:
        return memo.setdefault(id(value), type(value)())
    return copy.deepcopy(value, memo)


class _Detached(TorchFunctionMode):
    """The context of a copy: tensors computed from parameters, which torch refuses to copy, are detached first."""

    def __torch_function__(self, func: Target, types: object, args: Argument = (), kwargs: Argument = None) -> object:
        if func is torch.Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))
