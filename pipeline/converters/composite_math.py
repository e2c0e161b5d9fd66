"""Decompose elementwise functions without a TensorRT layer into operators that have one."""

from __future__ import annotations

import math
from typing import Any

import torch

from pipeline.converters.decompositions import register_torch_trt_decomposition

aten = torch.ops.aten
Tensor = torch.Tensor


@register_torch_trt_decomposition(aten.hypot.default)
def hypot(self: Tensor, other: Tensor) -> Tensor:
    """hypot(Tensor self, Tensor other) -> Tensor"""
    dtype = torch.promote_types(self.dtype, other.dtype)
    a, b = (x.to(torch.float32 if dtype.itemsize == 2 else dtype).abs() for x in (self, other))
    most = torch.maximum(a, b)
    ratio = torch.minimum(a, b) / torch.where(most == 0, 1.0, most)
    length = most * (1 + ratio * ratio).sqrt()
    return torch.where((a == math.inf) | (b == math.inf), math.inf, length).to(dtype)


@register_torch_trt_decomposition(aten.ldexp.Tensor)
def ldexp(self: Tensor, other: Tensor) -> Tensor:
    """ldexp.Tensor(Tensor self, Tensor other) -> Tensor"""
    return self * torch.pow(2.0, other)


@register_torch_trt_decomposition(aten.angle.default)
def angle(self: Tensor) -> Any:
    """angle(Tensor self) -> Tensor"""
    if self.is_complex():
        return NotImplemented
    result = torch.where(self < 0, math.pi, 0.0)
    return torch.where(self.isnan(), self, result).to(self.dtype) if self.is_floating_point() else result


@register_torch_trt_decomposition(aten.rrelu_with_noise_functional.default)
def rrelu(
    self: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """rrelu_with_noise_functional(Tensor self, Tensor noise, Scalar lower=0.125, Scalar upper=0.333…,
    bool training=False, Generator? generator=None) -> (Tensor, Tensor noise_out)"""
    return NotImplemented if training else (aten.leaky_relu(self, (lower + upper) / 2), noise.clone())


@register_torch_trt_decomposition(aten.as_strided_scatter.default)
def as_strided_scatter(
    self: Tensor, src: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Any:
    """as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None)
    -> Tensor"""
    if not all(isinstance(s, int) for s in (*self.shape, *size, *stride, storage_offset or 0)):
        return NotImplemented
    at = torch.zeros((), dtype=torch.int64, device=self.device) + (storage_offset or 0)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        steps = torch.arange(count, device=self.device) * step
        at = at + steps.reshape([-1 if d == dim else 1 for d in range(len(size))])
    return self.reshape(-1).scatter(0, at.reshape(-1), src.reshape(-1)).reshape(self.shape)
