"""Building blocks that slice, repeat or flip tensors, or compute running sums."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call, of_call

slice_op = of_call(aten.slice.Tensor, "input", "dim", "start", "stop", "step")
expand = of_call(aten.expand.default, "input_t", "shape")
cumsum = of_call(aten.cumsum.default, "input", "dim")
flip = of_call(aten.flip.default, "input", "dims")
diagonal = of_call(aten.diagonal.default, "input", offset=0, dim1=0, dim2=1)
as_strided = of_call(aten.as_strided.default, "input", "size", "stride", storage_offset=None)
tile = block(
    lambda input, dims: call(aten.repeat.default, input, [1] * (len(input.shape) - len(dims)) + list(dims)),
    "aten.repeat.default; missing numbers are 1",
)


@block
def slice(input: Argument, start: Sequence[Argument], shape: Sequence[Argument], stride: Sequence[int]) -> Expression:
    """A slice of each dim: where it begins, how many elements it has, and the step"""
    made: Expression = input
    for dim, (first, size, step) in enumerate(zip(start, shape, stride, strict=True)):
        made = call(aten.slice.Tensor, made, dim, first, first + (size - 1) * step + 1 if size else first, step)
    return made


@block
def chunk(input: Argument, chunks: int, dim: int) -> Expression:
    """aten.chunk.default -> tensors"""
    size = input.shape[dim]
    count = chunks if size < 0 else -(-size // -(-size // chunks)) if size else chunks
    made = call(aten.chunk.default, input, chunks, dim)
    return [made[i] for i in range(count)]
