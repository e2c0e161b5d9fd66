"""Define ``NetworkHandle``: a TensorRT network in memory, with all objects that it references.
Also create ``trt.Weights`` of low-bit quantized values that are stored in byte tensors."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch
from attrs import define, field

from pipeline.network.description import Weight
from pipeline.trt import Log, as_weights, trt, trt_dtype


@define(eq=False)
class NetworkHandle:
    """A TensorRT network with all objects that it references: its builder and logger, and its weights by name.

    Each of ``weights`` has ``nbytes``; ``kept`` are other objects that must stay alive until the engine is built;
    ``mapped`` are the mapped files among them, whose pages can be evicted while TensorRT does not read them.
    """

    net: trt.INetworkDefinition
    builder: trt.Builder
    log: Log
    kept: list[Any] = field(factory=list)
    weights: dict[str, Any] = field(factory=dict)
    mapped: list[mmap.mmap] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        """Empty ``kept`` and ``weights`` when this handle is freed, so that no other reference to them keeps memory."""
        for held in (self.kept, self.weights):
            weakref.finalize(self, held.clear)

    def drop_pages(self) -> None:
        """Evict weights in memory-mapped files from memory; the operating system reads them again when needed."""
        for mapping in self.mapped:
            drop_pages(mapping)

    @property
    def nbytes(self) -> int:
        """The total size of the weights in bytes."""
        return sum(weight.nbytes for weight in self.weights.values())


def drop_pages(mapping: bytes | mmap.mmap | None) -> None:
    """Drop the pages of a mapped file from this process's memory; a later read loads them again."""
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def name_dimensions(tensor: trt.ITensor, names: Sequence[str]) -> None:
    """Name the dims of a network's input ("" for no name). TensorRT treats dims with equal names as equal, which it
    needs to fuse layers that combine two inputs along a dynamic dim (such as attention and its mask)."""
    for dim, name in enumerate(names):
        if name:
            tensor.set_dimension_name(dim, name)


PACKED: Final = ("int4", "float4_e2m1fn_x2")
"""The dtypes, by torch's names, of which a byte stores two quantized values."""


def low_bit_trt_weights(tensor: torch.Tensor, dtype: str) -> Any:
    """Return ``trt.Weights`` of a low-bit dtype in a contiguous CPU tensor's memory, which must be kept alive."""
    count = tensor.numel() * (2 if dtype in PACKED and tensor.dtype == torch.uint8 else 1)
    return trt.Weights(trt_dtype(dtype), tensor.data_ptr(), count)


def trt_weights_of_tensor(tensor: torch.Tensor, weight: Weight) -> Any:
    """Return ``trt.Weights`` of a layer's weight, from the tensor that stores its (quantized) values."""
    return low_bit_trt_weights(tensor, weight.dtype) if weight.dtype in PACKED else as_weights(tensor)
