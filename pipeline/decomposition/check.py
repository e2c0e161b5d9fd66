"""Check that a decomposition returns tensors like its operator's: in number, dtype, rank and size."""

from __future__ import annotations

import torch

from pipeline.aten.types import Argument
from pipeline.records.wording import kind_of
from pipeline.shapes.environment import shape_of


def check_results(made: Argument, expected: Argument) -> None:
    """Raise if a decomposition returns other tensors than its operator: in number, dtype, rank or size."""
    several = isinstance(expected, tuple | list)
    given, wanted = (made if isinstance(made, tuple | list) else [made]), (expected if several else [expected])
    if isinstance(made, tuple | list) != several or len(given) != len(wanted):
        raise RuntimeError(f"the decomposition returned {_shown(made)}; the operator returns {_shown(expected)}")
    for a, b in zip(given, wanted, strict=True):
        value = a.meta.get("val") if isinstance(a, torch.fx.Node) else a
        unused = value is None and several
        if isinstance(b, torch.Tensor) and not unused and not _alike(value, b):
            raise RuntimeError(f"the decomposition returned {_shown(value)}; the operator returns {_shown(b)}")


def _alike(value: object, expected: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != expected.dtype or value.dim() != expected.dim():
        return False
    sizes = zip(shape_of(value), shape_of(expected), strict=True)
    return all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} results"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return kind_of(value)
