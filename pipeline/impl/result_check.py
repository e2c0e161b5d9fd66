"""Check that a converter's result has the dtype and shape of the operator's result."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.impl import base
from pipeline.network.context import NetworkError
from pipeline.shapes.environment import Expr, Relation, Symbols, bounds, shape_of
from pipeline.shapes.guards import normalized_terms
from pipeline.trt import to_torch, trt


def check_tensor(
    result: object,
    expected: torch.Tensor,
    symbols: Symbols,
    inputs: Sequence[torch.Tensor] = (),
    relations: Sequence[Relation] = (),
) -> None:
    """Raise `NetworkError` if a result is not a tensor, or differs from the expected dtype, rank or static dims.

    A data-dependent dim of size ``u0`` may also have the size of one of the node's ``inputs``: eager adds tensors of
    sizes ``u0`` and 48 only if u0 is 48. Or it may have the only size that the program's ``relations`` between sizes
    allow: if patches are added to 98 rows, there are 98 patches, whatever the image's height and width are.
    """
    if not isinstance(result, (trt.ITensor, torch.Tensor)):
        raise NetworkError(_describe_result(result))
    dtype = to_torch(result.dtype) if isinstance(result, trt.ITensor) else base.network_dtype(result.dtype)
    if dtype != base.network_dtype(expected.dtype):
        raise NetworkError(f"the TensorRT result has dtype {dtype}, expected {expected.dtype} as in PyTorch")
    actual, wanted = base.dims(result), shape_of(expected)
    if len(actual) != len(wanted):
        raise NetworkError(f"the TensorRT result has shape {list(actual)}, expected rank {len(wanted)}: {list(wanted)}")
    for i, (a, w) in enumerate(zip(actual, wanted, strict=True)):
        if a >= 0 and a != w and not _may_have_size(w, a, symbols, inputs) and not _must_have_size(w, a, relations):
            what = f"dimension {i} must be dynamic" if not isinstance(w, int) else f"dimension {i} differs"
            raise NetworkError(f"the TensorRT result has shape {list(actual)}, expected {list(wanted)}: {what}")


def _describe_result(value: object) -> str:
    """Return an error text: what a converter returned instead of a tensor, and what it should return."""
    if value is None:
        return "the converter returned None, expected a tensor: end it with return"
    name = type(value).__name__
    found = f"the converter returned {'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}, expected a tensor"
    if isinstance(value, trt.ILayer):
        return f"{found}: return layer.get_output(0)"
    return f"{found}: return its element" if isinstance(value, list | tuple) else found


def _may_have_size(size: Expr, value: int, symbols: Symbols, inputs: Sequence[torch.Tensor]) -> bool:
    """Return whether a dynamic size may be ``value``: no other value is possible; or the size is data-dependent, and
    ``value`` is possible and a size of one of the node's ``inputs``."""
    if isinstance(size, int):
        return False
    is_given = bool(free_unbacked_symbols(size)) and any(value in shape_of(tensor) for tensor in inputs)
    if not all(s.name in symbols for s in size.free_symbols):
        return is_given
    possible = bounds(size, symbols)
    return possible.min == possible.max == value or (is_given and possible.min <= value <= possible.max)


def _must_have_size(size: Expr, value: int, relations: Sequence[Relation]) -> bool:
    """Return whether a relation states that a size is ``value``, or that a multiple of their difference is 0."""
    equal = [each.condition for each in relations if isinstance(each.condition, sympy.Eq)]
    wanted = normalized_terms(size - value)
    return wanted is not None and any(normalized_terms(each.lhs - each.rhs) == wanted for each in equal)
