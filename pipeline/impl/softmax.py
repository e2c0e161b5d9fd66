"""Add softmax and log-softmax, computed in float32 for every input dtype."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, block
from pipeline.impl.reduce import reduce


@block
def softmax(net: Net, x: ITensor, dim: int) -> ITensor:
    """Return ``exp(x) / sum(exp(x))`` over a dim in the dtype of ``x``; NaN for a row of -inf, as in eager."""
    rank = base.rank(x)
    wide = base.raise_rank(net, base.cast(net, x, torch.float32), 2)  # TensorRT requires two dims
    layer = net.add("softmax", wide)
    layer.axes = 1 << (base.axis(dim, max(rank, 1)) + base.rank(wide) - max(rank, 1))
    result = base.squeeze(net, layer.get_output(0), range(2 - rank))
    return base.cast(net, result, base.dtype_of(x))


@block
def log_softmax(net: Net, x: ITensor, dim: int) -> ITensor:
    """Return ``x - log(sum(exp(x)))`` over a dim in the dtype of ``x``, computed without overflow."""
    rank = base.rank(x)
    wide = base.raise_rank(net, base.cast(net, x, torch.float32), 1)
    dims = [base.axis(dim, base.rank(wide))]
    shifted = base.elementwise(net, "SUB", wide, reduce(net, "MAX", wide, dims, True))
    total = reduce(net, "SUM", base.unary(net, "EXP", shifted), dims, True)
    result = base.elementwise(net, "SUB", shifted, base.unary(net, "LOG", total))
    return base.cast(net, base.squeeze(net, result, range(1 - rank)), base.dtype_of(x))
