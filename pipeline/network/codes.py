"""Make weights of few-bit codes that lie in the memory of byte tensors."""

from __future__ import annotations

from typing import Any, Final

import torch

from pipeline.network.description import Weight
from pipeline.trt import dtype_called, trt, weights_of

PACKED: Final = ("int4", "float4_e2m1fn_x2")
"""The dtypes of which a byte of a tensor holds two codes, by torch's names."""


def codes_of(tensor: torch.Tensor, dtype: str) -> Any:
    """The ``trt.Weights`` of a dtype that a contiguous CPU tensor holds; the caller keeps the tensor alive."""
    count = tensor.numel() * (2 if dtype in PACKED and tensor.dtype == torch.uint8 else 1)
    return trt.Weights(dtype_called(dtype), tensor.data_ptr(), count)


def held_as(tensor: torch.Tensor, weight: Weight) -> Any:
    """The ``trt.Weights`` of a layer's weight, from the tensor that holds its numbers or codes."""
    return codes_of(tensor, weight.dtype) if weight.dtype in PACKED else weights_of(tensor)
