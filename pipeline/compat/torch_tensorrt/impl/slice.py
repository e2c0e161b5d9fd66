"""Building blocks that slice, repeat or flip tensors, or compute running sums."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call, op_block

slice_op = op_block(aten.slice.Tensor, "input", "dim", "start", "stop", "step")
expand = op_block(aten.expand.default, "input_t", "shape")
cumsum = op_block(aten.cumsum.default, "input", "dim")
flip = op_block(aten.flip.default, "input", "dims")
diagonal = op_block(aten.diagonal.default, "input", offset=0, dim1=0, dim2=1)
as_strided = op_block(aten.as_strided.default, "input", "size", "stride", storage_offset=None)
tile = block(
    lambda input, dims: call(aten.repeat.default, input, [1] * (len(input.shape) - len(dims)) + list(dims)),
    "aten.repeat.default; missing numbers are 1",
)


@block
def slice(input: Argument, start: Sequence[Argument], shape: Sequence[Argument], stride: Sequence[int]) -> Expression:
    """Slice each dim, given its first index, its number of elements, and its step."""
    made: Expression = input
    for dim, (first, size, step) in enumerate(zip(start, shape, stride, strict=True)):
        made = call(aten.slice.Tensor, made, dim, first, first + (size - 1) * step + 1 if size else first, step)
    return made


@block
def chunk(input: Argument, chunks: int, dim: int) -> Expression:
    """Add the layers of aten.chunk.default; return a list of tensors."""
    size = input.shape[dim]
    count = chunks if size < 0 else -(-size // -(-size // chunks)) if size else chunks
    made = call(aten.chunk.default, input, chunks, dim)
    return [made[i] for i in range(count)]
