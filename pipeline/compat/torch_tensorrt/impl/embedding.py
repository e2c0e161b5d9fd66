"""Building blocks for embeddings: they look up rows of a table by index."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call

embedding = block(
    lambda input, weight, scale_grad_by_freq=False, sparse=False: call(aten.embedding.default, weight, input),
    "aten.embedding.default; gradients do not matter in an engine",
)


@block
def embedding_bag(
    weight: Argument,
    indices: Argument,
    offsets: Argument,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Argument = None,
    include_last_offset: bool = False,
) -> Expression:
    """Add aten._embedding_bag.default; return [result, None, None, None]. ``mode``: 0 is sum, 1 is mean, 2 is max."""
    options = (False, mode, False, per_sample_weights, include_last_offset)
    return [call(aten._embedding_bag.default, weight, indices, offsets, *options)[0], None, None, None]
