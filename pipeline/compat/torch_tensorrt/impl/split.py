"""Building blocks that split a tensor into several."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call, require


@block
def split(input: Argument, split_size_or_sections: int | Sequence[int], dim: int = 0) -> Expression:
    """Split a tensor by one size (aten.split.Tensor) or several (aten.split_with_sizes.default); return a list."""
    if not isinstance(split_size_or_sections, int):
        sizes = list(split_size_or_sections)
        made = call(aten.split_with_sizes.default, input, sizes, dim)
        return [made[i] for i in range(len(sizes))]
    static = input.shape[dim] >= 0
    require(static, "impl.split.split", "the number of parts depends on a dynamic size", "pass the sizes of the parts")
    made = call(aten.split.Tensor, input, split_size_or_sections, dim)
    return [made[i] for i in range(max(-(-input.shape[dim] // split_size_or_sections), 1))]
