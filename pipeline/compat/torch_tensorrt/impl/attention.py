"""Building blocks for attention."""

import torch

from pipeline.compat.torch_tensorrt.blocks import aten, block, call

scaled_dot_product_attention = block(
    lambda query, key, value, is_causal, scale: call(
        aten.scaled_dot_product_attention.default, query, key, value, None, 0.0, is_causal, scale=scale
    ),
    "aten.scaled_dot_product_attention.default",
)
tril = block(
    lambda row, col: call(aten.tril.default, call(aten.full.default, [row, col], True, dtype=torch.bool)),
    "A mask of bools, True on and below the diagonal: aten.tril.default",
)
