"""What a GPU would answer while torch traces for one on a machine that has none.

Models and torch ask ``torch.cuda`` about the GPU, and torch chooses its kernel of attention by it, whose result lies in
memory in another way than that of plain attention. Where there is a GPU, it answers for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._C import DispatchKey

ASSUMED: Final = "8.0"
"""The compute capability of a GPU that nobody names: the least that engines are built for."""

KEY: Final = DispatchKey.CompositeImplicitAutograd
ATTENTION: Final = torch.ops.aten.scaled_dot_product_attention.default

_lock = threading.RLock()


@contextmanager
def gpu_answers(device: str | None, capabilities: Sequence[str]) -> Iterator[None]:
    """While torch traces for ``device``: what ``torch.cuda`` refuses to say here is answered for a GPU of the least of
    these compute capabilities, autocast for ``cuda`` is not switched off, and attention is a GPU's."""
    if device != "cuda" or torch.cuda.is_available():
        yield
        return
    answers = _functions(next(iter(capabilities), ASSUMED))
    with _lock:
        own, kernel = {place: getattr(*place) for place in answers}, ATTENTION.py_kernels.get(KEY)
        try:
            _put(answers)
            _install(_attention)
            yield
        finally:
            _put(own)
            _install(kernel)


def _functions(capability: str) -> dict[tuple[Any, str], Callable[..., Any]]:
    major, minor = map(int, capability.split("."))
    return {
        (torch.cuda, "get_device_capability"): lambda device=None: (major, minor),
        (torch.cuda, "is_bf16_supported"): lambda including_emulation=True: major >= 8,
        (torch.cuda, "current_device"): lambda: 0,
        (torch.cuda.amp.common, "amp_definitely_not_available"): lambda: False,
    }


def _put(functions: Mapping[tuple[Any, str], Any]) -> None:
    for (module, name), function in functions.items():
        setattr(module, name, function)


def _install(kernel: Any) -> None:
    if kernel is None:
        ATTENTION.py_kernels.pop(KEY, None)
    else:
        ATTENTION.py_kernels[KEY] = kernel
    ATTENTION._uncache_dispatch(KEY)
    ATTENTION._dispatch_cache.clear()


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The shape of an attention's result, and how it lies in memory: a kernel writes the heads of each position side by
    side, plain attention the positions of each head."""
    if query.device.type != "cuda":
        rest = {"scale": scale, "enable_gqa": enable_gqa}
        plain: torch.Tensor = ATTENTION._op_dk(KEY, query, key, value, attn_mask, dropout_p, is_causal, **rest)
        return plain
    if not _has_kernel(query, value, attn_mask, enable_gqa):
        leading = torch.broadcast_shapes(query.shape[:-2], value.shape[:-2]) if not enable_gqa else query.shape[:-2]
        return query.new_empty((*leading, query.shape[-2], value.shape[-1]))
    batch, heads, length, _ = query.shape
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)


def _has_kernel(query: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, gqa: bool) -> bool:
    """Whether a GPU from compute capability 8.0 on has a kernel for an attention: the flash kernel takes halves without
    a mask, the efficient one any of which 16 bytes hold a whole part."""
    sizes = (query.shape[-1], value.shape[-1])
    if query.dim() != 4 or query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    if query.dtype.itemsize == 2 and mask is None and sizes[0] == sizes[1] and sizes[0] <= 256:
        return True
    return not gqa and all(size % (16 // query.dtype.itemsize) == 0 for size in sizes)
