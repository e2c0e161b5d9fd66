"""``NetworkHandle``: a TensorRT network in memory, with everything that it references; and ``trt.Weights`` of low-bit
quantized values stored in byte tensors."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch
from attrs import define, field

from pipeline.network.description import Weight
from pipeline.trt import Log, as_weights, trt, trt_dtype


@define(eq=False)
class NetworkHandle:
    """A TensorRT network with everything that it references: its builder and logger, and its weights by name.

    ``weights`` have ``nbytes``; ``kept`` is every other object that must stay alive until the engine is built;
    ``mapped`` are the mapped files among them, whose pages can be evicted while TensorRT does not read them.
    """

    net: trt.INetworkDefinition
    builder: trt.Builder
    log: Log
    kept: list[Any] = field(factory=list)
    weights: dict[str, Any] = field(factory=dict)
    mapped: list[Any] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        """Free everything that the network references together with it, even if the lists are referenced elsewhere."""
        weakref.finalize(self, _clear, self.kept, self.weights)

    def drop_pages(self) -> None:
        """Evict weights in mapped files from memory; they are read again when needed."""
        for file in self.mapped:
            file.drop_pages()

    @property
    def nbytes(self) -> int:
        """The size of the weights in bytes."""
        return sum(weight.nbytes for weight in self.weights.values())


def _clear(references: list[Any], weights: dict[str, Any]) -> None:
    references.clear()
    weights.clear()


def name_dimensions(tensor: trt.ITensor, names: Sequence[str]) -> None:
    """Name the dimensions of a network's input ("" for no name). TensorRT treats dimensions with equal names as equal,
    which it needs to fuse layers that combine two inputs along a dynamic dimension (such as attention and its mask)."""
    for dim, name in enumerate(names):
        if name:
            tensor.set_dimension_name(dim, name)


PACKED: Final = ("int4", "float4_e2m1fn_x2")
"""The dtypes that store two quantized values a byte, by torch's names."""


def low_bit_weights(tensor: torch.Tensor, dtype: str) -> Any:
    """Return ``trt.Weights`` of a dtype over a contiguous CPU tensor's memory; the caller must keep it alive."""
    count = tensor.numel() * (2 if dtype in PACKED and tensor.dtype == torch.uint8 else 1)
    return trt.Weights(trt_dtype(dtype), tensor.data_ptr(), count)


def weights_of_tensor(tensor: torch.Tensor, weight: Weight) -> Any:
    """Return ``trt.Weights`` of a layer's weight, from the tensor that stores its values or quantized values."""
    return low_bit_weights(tensor, weight.dtype) if weight.dtype in PACKED else as_weights(tensor)
