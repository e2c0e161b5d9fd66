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
    """Return [aten._embedding_bag.default, None, None, None]; ``mode`` is 0 for sum, 1 for mean, 2 for max."""
    options = (False, mode, False, per_sample_weights, include_last_offset)
    return [call(aten._embedding_bag.default, weight, indices, offsets, *options)[0], None, None, None]
