"""Building blocks for sizes that are known only when the engine runs."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.aten.types import Argument, Target
from pipeline.compat.torch_tensorrt.values import Conversion, SourceIR, as_context, infer_sizes
from pipeline.impl import base
from pipeline.trt import trt


def shape(
    ctx: Conversion, target: Target, source_ir: SourceIR | None, name: str, input_val: Argument, dim: int | None = None
) -> trt.ITensor:
    """Return the size of a dim as an int64 tensor of shape [1]; without ``dim`` all sizes, of shape [rank]."""
    ctx = as_context(ctx)
    x = base.tensor(ctx, name, input_val)
    if dim is None:
        return base.shape_tensor(ctx, name, base.sizes(ctx, name, x))
    made, size = base.size_tensor(ctx, name, base.size(ctx, name, x, dim)), infer_sizes(ctx, x)[dim]
    if size is not None:
        ctx.held_sizes[id(made)] = size, made
    return made


def get_shape_with_dynamic_shape(
    ctx: Conversion, target: Target, source_ir: SourceIR | None, name: str, shape: Sequence[int], input_val: Argument
) -> trt.ITensor:
    """Return a shape as an int64 tensor, each -1 replaced by the size of ``input_val`` in that dim."""
    ctx = as_context(ctx)
    sizes = [base.size(ctx, name, input_val, dim) if size < 0 else size for dim, size in enumerate(shape)]
    return base.shape_tensor(ctx, name, sizes)
