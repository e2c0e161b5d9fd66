"""Define the types that converters receive, and a decorator that checks arguments and converts constants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

import numpy as np
import torch

from pipeline.impl.base import SymbolicInt, tensor
from pipeline.recipes import qualified_name
from pipeline.trt import trt

TRTTensor: TypeAlias = trt.ITensor
TRTNetwork: TypeAlias = trt.INetworkDefinition
TRTLayer: TypeAlias = trt.ILayer

F = TypeVar("F", bound=Callable[..., Any])
Types: TypeAlias = tuple[type, ...]

_NUMBERS: Final = (bool, int, float, np.generic)
_LADDER: Final[tuple[Types, ...]] = (_NUMBERS, (np.ndarray,), (torch.Tensor,), (TRTTensor,))
"""The types in order of promotion: a number may become an array, an array a torch tensor, a tensor a layer's output."""


def enforce_tensor_types(types: Mapping[int | str, Types], promote: bool = True) -> Callable[[F], F]:
    """Check a converter's arguments before each call; in `types` an int is a position in `args`, a str a name in
    `kwargs`.

    An argument that is absent or None passes. A constant of another type is promoted if `promote` is set: to the first
    of the allowed types above its own (number < np.ndarray < torch.Tensor < TRTTensor; a symbolic size can be a
    TRTTensor), or else a tensor to an np.ndarray. Any other argument raises a `TypeError`. This decorator may be above
    or below those that declare converters.
    """
    for key, allowed in types.items():
        if isinstance(key, bool) or not isinstance(key, int | str) or (isinstance(key, int) and key < 0):
            raise TypeError(f"enforce_tensor_types: the key {key!r} must be an index in args or a name in kwargs")
        if not isinstance(allowed, tuple) or not allowed or not all(isinstance(kind, type) for kind in allowed):
            raise TypeError(f"enforce_tensor_types: argument {key!r} needs a tuple of types, not {allowed!r}")

    types = dict(types)

    def decorate(converter: F) -> F:
        @functools.wraps(converter)
        def checked(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
            given: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
            for key, allowed in types.items():
                if given.get(key) is not None:
                    given[key] = _allowed_value(ctx, target, name, key, given[key], allowed, promote)
            positional = tuple(given[position] for position in range(len(args)))
            return converter(ctx, target, positional, {key: given[key] for key in kwargs}, name)

        return cast(F, checked)

    return decorate


def _allowed_value(ctx: Any, target: Any, name: str, key: int | str, value: Any, allowed: Types, promote: bool) -> Any:
    """Return an argument if its type is allowed, or else promote it to an allowed type; TypeError if neither works."""
    if isinstance(value, allowed):
        return value
    if promote and (goal := _promotion_target(value, allowed)) is not None:
        return _promote(ctx, f"{name}/{key}", value, goal)
    kinds = " or ".join(kind.__name__ for kind in allowed)
    raise TypeError(f"{qualified_name(target)}: argument {key!r} must be {kinds}, not {type(value).__name__}")


def _promotion_target(value: Any, allowed: Types) -> type | None:
    """Return the first allowed type that a value can be converted to; None if there is none."""
    if isinstance(value, SymbolicInt):
        return TRTTensor if TRTTensor in allowed else None
    rung = next((i for i, kinds in enumerate(_LADDER) if isinstance(value, kinds)), len(_LADDER))
    above = [kind for kinds in _LADDER[rung + 1 :] for kind in kinds]
    goal = next((kind for kind in allowed if kind in above), None)
    return np.ndarray if goal is None and isinstance(value, torch.Tensor) and np.ndarray in allowed else goal


def _promote(ctx: Any, name: str, value: Any, target: type) -> Any:
    """Convert a constant to the target type. Numbers become int64 or float32, as in torch. A tensor and its array share
    memory, so that weights created from the array can be refitted."""
    if target is np.ndarray and isinstance(value, torch.Tensor):
        if value.dtype == torch.bfloat16:
            raise TypeError("numpy has no bfloat16: allow torch.Tensor, and create trt.Weights from its data_ptr()")
        return value.detach().numpy()
    if target is np.ndarray:
        return np.asarray(_copy_to_tensor(value))
    if target is torch.Tensor:
        return _copy_to_tensor(value)
    return tensor(ctx, name, _copy_to_tensor(value) if isinstance(value, np.ndarray) else value)


def _copy_to_tensor(value: Any) -> torch.Tensor:
    """Copy the data to a new tensor, which does not share memory with the caller's array."""
    if isinstance(value, float) and not isinstance(value, np.generic):
        return torch.tensor(value, dtype=torch.float32)
    return torch.tensor(value)
