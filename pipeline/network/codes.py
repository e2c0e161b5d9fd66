"""Create ``trt.Weights`` of low-bit quantized values stored in byte tensors."""

from __future__ import annotations

from typing import Any, Final

import torch

from pipeline.network.description import Weight
from pipeline.trt import dtype_called, trt, weights_of

PACKED: Final = ("int4", "float4_e2m1fn_x2")
"""The dtypes that store two quantized values a byte, by torch's names."""


def codes_of(tensor: torch.Tensor, dtype: str) -> Any:
    """Return ``trt.Weights`` of a dtype over a contiguous CPU tensor's memory, which the caller keeps alive."""
    count = tensor.numel() * (2 if dtype in PACKED and tensor.dtype == torch.uint8 else 1)
    return trt.Weights(dtype_called(dtype), tensor.data_ptr(), count)


def held_as(tensor: torch.Tensor, weight: Weight) -> Any:
    """Return ``trt.Weights`` of a layer's weight, from the tensor that stores its values or quantized values."""
    return codes_of(tensor, weight.dtype) if weight.dtype in PACKED else weights_of(tensor)
