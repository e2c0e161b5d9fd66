"""The building block that removes dims of size 1."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call


@block
def squeeze(input: Argument, dim: Argument = None) -> Expression:
    """Remove dims of size 1 (aten.squeeze.dims); without ``dim``, remove all dims whose size is always 1."""
    ones = [i for i, size in enumerate(input.shape) if size == 1]
    return call(aten.squeeze.dims, input, ones if dim is None else [dim] if isinstance(dim, int) else dim)
