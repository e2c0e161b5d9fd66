"""Run matmuls of a few rows, and attention with a single query per head, by Triton kernels in CUDA graphs.

For a few rows these kernels read weights and KV caches at full memory bandwidth, unlike cuBLAS and PyTorch's attention
(docs/notes/2026-11-30-few-rows.md). Outside of a CUDA graph they launch more slowly than PyTorch's kernels.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch.nn.functional import linear as torch_linear

from pipeline.aten.types import Argument

HALVES: Final = (torch.float16, torch.bfloat16)
ROWS: Final = 16
"""The maximum number of rows of a matmul that these kernels compute: one tile of a tensor core."""
LEAST, LEAST_OF_SEVERAL = 1 << 19, 1 << 24
"""The minimum elements of a weight for which these kernels beat cuBLAS, with one row and with several rows."""
WIDTHS: Final = (64, 128, 256)
"""The head sizes that the attention kernel supports, which are powers of two."""
KEYS, PARTS, PROGRAMS = 64, 32, 512
"""Sizes of the attention kernel: keys per block, the maximum parts of the keys, the maximum Triton programs."""
DEEP: Final = 128 << 10
"""The bytes of shared memory that a GPU needs to run the kernel for several rows with five pipeline stages."""


@cache
def is_triton_installed() -> bool:
    """Return whether Triton is installed; torch for CUDA on Linux includes it."""
    return find_spec("triton") is not None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``x @ weight.T + bias``: by Triton kernels for few rows in half precision, else by PyTorch."""
    rows = x.numel() // max(x.shape[-1], 1)
    least = LEAST if rows == 1 else LEAST_OF_SEVERAL
    halves = x.dtype in HALVES and weight.dtype == x.dtype and (bias is None or bias.dtype == x.dtype)
    if not halves or not 0 < rows <= ROWS or weight.numel() < least or not weight.is_contiguous() or x.shape[-1] % 16:
        return torch_linear(x, weight, bias)
    from pipeline.runtime import triton_kernels as kernels

    n, k = weight.shape
    x, out = x.contiguous(), x.new_empty(*x.shape[:-1], n)
    last = weight if bias is None else bias.contiguous()
    given: dict[str, Any] = {"BIAS": bias is not None}
    if rows == 1:
        terms, warps = (2048, 2) if k >= 4096 else (1024, 4)
        given |= {"COLUMNS": 2, "TERMS": terms, "num_warps": warps, "num_stages": 1}
        kernels.one_row[(-(-n // 2),)](x, weight, last, out, n, k, **given)
    else:
        columns, terms = (64, 128) if n >= 1 << 14 else (32, 256)
        given |= {"ROWS": ROWS, "COLUMNS": columns, "TERMS": terms, "num_warps": 4, "num_stages": _num_stages(x.device)}
        kernels.few_rows[(-(-n // columns),)](x, weight, last, out, rows, n, k, **given)
    return out


@cache
def _num_stages(device: torch.device) -> int:
    """Return ``num_stages`` for Triton kernels: 5 on a GPU with enough shared memory per block, else fewer."""
    if device.type != "cuda":
        return 1
    properties: Any = torch.cuda.get_device_properties(device)
    return 5 if properties.shared_memory_per_block_optin >= DEEP else 2


def supports_attention(query: Argument, key: Argument, value: Argument, mask: Argument = None) -> bool:
    """Return whether `attention` supports tensors of these shapes and dtypes: half precision, one query per head."""
    tensors = (query, key, value)
    return (
        all(x.dim() == 4 and x.dtype in HALVES and x.dtype == query.dtype for x in tensors)
        and query.shape[-2] == 1
        and query.shape[-1] in WIDTHS
        and key.shape == value.shape
        and query.shape[-1] == key.shape[-1]
        and query.shape[0] == key.shape[0]
        and query.shape[1] % key.shape[1] == 0
        and query.shape[1] // key.shape[1] <= ROWS
        and (mask is None or (mask.dim() == 4 and mask.shape[1] == 1))
    )


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Return the attention of one query per head; G < H is grouped-query attention (GQA).

    query: [B, H, 1, D]. key, value: [B, G, L, D]. mask: [B or 1, 1, 1, L or 1], boolean or additive.
    """
    from pipeline.runtime import triton_kernels as kernels

    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    (batch, heads, length, width), group = key.shape, query.shape[1] // key.shape[1]
    parts = 1
    while 2 * parts * KEYS <= length and 2 * parts <= PARTS and 2 * parts * batch * heads <= PROGRAMS:
        parts *= 2
    sums = query.new_empty((batch, heads, parts, ROWS, width), dtype=torch.float32)
    stats = query.new_empty((batch, heads, parts, 2, ROWS), dtype=torch.float32)
    out = query.new_empty(query.shape)
    seen = query if mask is None else mask.expand(batch, 1, 1, length)
    kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    strides = (
        *query.stride()[:2],
        *key.stride()[:3],
        *value.stride()[:3],
        *((0, 0, 0) if mask is None else (seen.stride(0), 0, seen.stride(3))),
    )
    sizes = {"GROUP": group, "ROWS": ROWS, "WIDTH": width, "PARTS": parts, "num_warps": 4}
    tensors = (query, key, value, seen, sums, stats)
    kernels.attend[(batch * heads, parts)](
        *tensors, length, heads, scale, *strides, KIND=kind, KEYS=KEYS, num_stages=2, **sizes
    )
    kernels.combine_parts[(batch * heads, group)](sums, stats, out, **sizes)
    return out
