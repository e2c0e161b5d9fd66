"""Pooling over sizes that vary, for which torch takes Python ints: windows as long as a dim (``F.avg_pool2d(x,
x.shape[2:])``), and the dim that `max_pool1d` pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch.nn import functional

from pipeline.aten.types import Argument, Target
from pipeline.shapes.environment import expression

MAXIMA: Final[Mapping[Target, int]] = {
    getattr(module, f"max_pool{count}d"): count for module in (torch, functional) for count in (1, 2, 3)
}
POOLS: Final = {**MAXIMA, torch.avg_pool1d: 1, functional.avg_pool2d: 2, functional.avg_pool3d: 3}
"""How many dims each function pools."""

NONE: Final = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
"""The arguments that have a number for each dim, and the numbers with which a dim stays as it is."""
OF_MEANS: Final = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
NAMES: Final = {func: ("input", *NONE, "ceil_mode") if func in MAXIMA else OF_MEANS for func in POOLS}


def of_any_size(override: Callable[..., object]) -> Callable[..., object]:
    """Wrap torch.export's handling of a call in the model: pooled sizes do not become constants."""

    def override_pools(self: Argument, func: Target, args: Argument, kwargs: Argument) -> object:
        if func in POOLS:
            given = {**dict(zip(NAMES[func], args, strict=False)), **(kwargs or {})}
            lengths = _per_dim(given["kernel_size"], 1) + [given["input"].shape[-1]] * (MAXIMA.get(func) == 1)
            if any(isinstance(length, torch.SymInt) for length in lengths):
                return _pool, (func, given), {}
        return override(self, func, args, kwargs)

    return override_pools


def _pool(func: Target, given: Mapping[str, Argument]) -> object:
    """Reduce the dims that one window covers, and pool the others, in one rounding."""
    count, x, dtype = POOLS[func], given["input"], given["input"].dtype
    by_dim = {name: _per_dim(given.get(name, default), count) for name, default in NONE.items() if name in NAMES[func]}
    if not given.get("stride"):
        by_dim["stride"] = [*by_dim["kernel_size"]]
    covered = [_covers(*each) for each in zip(x.shape[-count:], by_dim["kernel_size"], by_dim["padding"], strict=True)]
    if any(covered) and x.is_floating_point() and given.get("divisor_override") is None:
        if func not in MAXIMA and not all(covered):
            x = x.to(torch.promote_types(dtype, torch.float32))
        reduce = torch.amax if func in MAXIMA else torch.mean
        x = reduce(x, [dim - count for dim, is_covered in enumerate(covered) if is_covered], keepdim=True)
        for name, numbers in by_dim.items():
            by_dim[name] = [NONE[name] if each else number for each, number in zip(covered, numbers, strict=True)]
        if all(covered):
            return x
    others = {name: value for name, value in given.items() if name not in by_dim and name != "input"}
    if MAXIMA.get(func) != 1:
        return func(x, **by_dim, **others).to(dtype)
    rows: dict[str, Argument] = {name: (NONE[name], *numbers) for name, numbers in by_dim.items()}
    return functional.max_pool2d(x.unsqueeze(-2), **rows, **others).squeeze(-2)


def _per_dim(value: Argument, count: int) -> list[Argument]:
    """Return an argument's value for each dim."""
    numbers = [*value] if isinstance(value, tuple | list) else [value]
    return numbers * count if len(numbers) == 1 else numbers


def _covers(size: Argument, kernel: Argument, padding: Argument) -> bool:
    """Return whether a window always covers a dim of varying size."""
    return isinstance(kernel, torch.SymInt) and padding == 0 and expression(size) == kernel.node.expr
