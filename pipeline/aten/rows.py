"""Linear layers with what is before or behind them in a decoder, for one row at a time: ``pipeline::normed_linear`` and
``pipeline::linear_onto``."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import linear


@torch.library.custom_op("pipeline::normed_linear", mutates_args=())
def normed_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    rounds_first: bool,
) -> torch.Tensor:
    """Return a linear layer of ``x / sqrt(mean(x²) + eps) * gain``, which is computed in float32.

    Args:
        x: [..., K], of a floating-point dtype.
        gain: [K]; of any floating-point dtype, or of x's if ``rounds_first``.
        weight: [N, K], of x's dtype.
        bias: [N], of x's dtype, or None.
        eps: added to the mean of the squares.
        rounds_first: whether the quotient is rounded to x's dtype before it is multiplied by the gain (Llama), or the
            product (Gemma, and torch's own).
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    result = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    result = result.to(x.dtype) * gain if rounds_first else (result * gain.to(wide.dtype)).to(x.dtype)
    return linear(result, weight, bias)


@torch.library.custom_op("pipeline::linear_onto", mutates_args=())
def linear_onto(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, column: torch.Tensor) -> torch.Tensor:
    """Return a linear layer's result added to a tensor.

    Args:
        x: [..., K], of a floating-point dtype.
        weight: [N, K], of x's dtype.
        bias: [N], of x's dtype, or None.
        column: [..., N, 1], of x's dtype: what the result is added to.
    """
    return column.squeeze(-1) + linear(x, weight, bias)


normed_linear.register_fake(lambda x, gain, weight, bias, *_: linear(x, weight, bias))
linear_onto.register_fake(lambda x, weight, bias, column: linear(x, weight, bias))

NORMED_LINEAR: Final = torch.ops.pipeline.normed_linear.default
"""``pipeline::normed_linear(Tensor x, Tensor gain, Tensor weight, Tensor? bias, float eps, bool rounds_first)``"""

LINEAR_ONTO: Final = torch.ops.pipeline.linear_onto.default
"""``pipeline::linear_onto(Tensor x, Tensor weight, Tensor? bias, Tensor column) -> Tensor``"""
