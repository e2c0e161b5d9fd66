"""Decompose distances between vectors, and sums of products, to operators that have converters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.converters.decompositions import register_torch_trt_decomposition

aten = torch.ops.aten
Tensor = torch.Tensor


def _norm(difference: Tensor, p: float) -> Tensor:
    """Return the p-norm over the last dim, as cdist and pdist define it: 0 for an empty dim."""
    if difference.shape[-1] == 0:
        return difference.sum(-1)
    if p == 0:
        return (difference != 0).sum(-1).to(difference.dtype)
    if p == 1:
        return difference.abs().sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if math.isinf(p):
        return difference.abs().amax(-1)
    return difference.abs().pow(p).sum(-1).pow(1 / p)


@register_torch_trt_decomposition(aten._cdist_forward.default)
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor"""
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@register_torch_trt_decomposition(aten._euclidean_dist.default)
def euclidean_dist(x1: Tensor, x2: Tensor) -> Tensor:
    """_euclidean_dist(Tensor x1, Tensor x2) -> Tensor"""
    return cdist(x1, x2, 2.0, None)


@register_torch_trt_decomposition(aten._pdist_forward.default)
def pdist(self: Tensor, p: float = 2.0) -> Tensor:
    """_pdist_forward(Tensor self, float p=2) -> Tensor"""
    rows = self.shape[0]
    first, second = torch.triu_indices(rows, rows, 1, device=self.device).unbind(0)
    return _norm(self.index_select(0, first) - self.index_select(0, second), p)


@register_torch_trt_decomposition(aten._trilinear.default)
def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim,
    int unroll_dim=1) -> Tensor"""
    a, b, c = (_expanded(x, dims) for x, dims in ((i1, expand1), (i2, expand2), (i3, expand3)))
    product = a * b * c
    return product.sum(list(sumdim)) if sumdim else product


def _expanded(x: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        x = x.unsqueeze(dim)
    return x


@register_torch_trt_decomposition(aten.addbmm.default)
def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    if not (self.is_floating_point() or self.is_complex()):
        beta, alpha = int(beta), int(alpha)  # as eager does for integers
    product = batch1.transpose(0, 1).flatten(1) @ batch2.flatten(0, 1)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (self if beta == 1 else self * beta)
