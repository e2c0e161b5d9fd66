"""Compare what a converter made with the operator's own result."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.impl import base
from pipeline.network.context import NetworkError
from pipeline.shapes.environment import Expr, Symbols, bounds, shape_of
from pipeline.trt import to_torch, trt


def check_tensor(made: object, expected: torch.Tensor, symbols: Symbols, given: Sequence[torch.Tensor] = ()) -> None:
    """Raise a `NetworkError` if a result is no tensor, or has another dtype, rank or static dim than expected.

    Where data says how many rows there are, a dim may have the size of a tensor that the operator was ``given``:
    ``rows[u0] + rows[48]`` is only where they are as many.
    """
    if not isinstance(made, (trt.ITensor, torch.Tensor)):
        raise NetworkError(_returned(made))
    dtype = to_torch(made.dtype) if isinstance(made, trt.ITensor) else base.network_dtype(made.dtype)
    if dtype != base.network_dtype(expected.dtype):
        raise NetworkError(f"the network's dtype is {dtype}, the operator's {expected.dtype}")
    actual, wanted = base.dims(made), shape_of(expected)
    if len(actual) != len(wanted):
        raise NetworkError(f"the network's shape is {list(actual)}, the operator's {list(wanted)}: ranks differ")
    for i, (a, w) in enumerate(zip(actual, wanted, strict=True)):
        if a >= 0 and a != w and not _is_only(w, a, symbols) and not _is_given(w, a, symbols, given):
            what = "is fixed" if not isinstance(w, int) else "differs"
            raise NetworkError(f"dim {i} {what}: the network's shape is {list(actual)}, the operator's {list(wanted)}")


def _returned(made: object) -> str:
    """Describe what a converter returned in place of a tensor, and what it should return."""
    if made is None:
        return "the converter returned None, expected a tensor: end it with return"
    name = type(made).__name__
    found = f"the converter returned {'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}, expected a tensor"
    if isinstance(made, trt.ILayer):
        return f"{found}: return layer.get_output(0)"
    return f"{found}: return its element" if isinstance(made, list | tuple) else found


def _is_only(size: Expr, value: int, symbols: Symbols) -> bool:
    """Whether a size that varies in the graph has only one value in its range."""
    if isinstance(size, int) or not all(s.name in symbols for s in size.free_symbols):
        return False
    given = bounds(size, symbols)
    return given.min == given.max == value


def _is_given(size: Expr, value: int, symbols: Symbols, given: Sequence[torch.Tensor]) -> bool:
    """Whether a size that data has can have a value, which is the size of a tensor that is given."""
    if isinstance(size, int) or not free_unbacked_symbols(size):
        return False
    if not any(value in shape_of(tensor) for tensor in given):
        return False
    if not all(s.name in symbols for s in size.free_symbols):
        return True
    possible = bounds(size, symbols)
    return possible.min <= value <= possible.max
