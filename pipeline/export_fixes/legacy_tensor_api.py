"""Trace older code that eager accepts: ``x.data``, and ``torch.where`` with a mask of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from pipeline.aten.types import Argument, Target
from pipeline.export_fixes.assigned_data import set_data


def legacy(override: Callable[..., object]) -> Callable[..., object]:
    """Wrap torch.export's handling of a call in the model: trace ``x.data`` and masks of bytes."""

    def override_older(self: Argument, func: Target, args: Argument, kwargs: Argument) -> object:
        if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            return override(self, torch.Tensor.detach, args[:1], {})
        if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            return set_data, args, {}
        if func is torch.where or func is torch.Tensor.where:
            args, kwargs = _by_bools(func, args, kwargs or {})
        return override(self, func, args, kwargs)

    return override_older


def _by_bools(
    func: Target, args: Sequence[Argument], kwargs: Mapping[str, Argument]
) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
    """Return the arguments with a mask of bools."""
    place, given, named = (0 if func is torch.where else 1), list(args), dict(kwargs)
    held: Argument = given if len(given) > place else named
    key: Argument = place if len(given) > place else "condition"
    mask = held[key] if held is given or key in named else None
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.uint8:
        held[key] = mask.bool()
    return tuple(given), named
