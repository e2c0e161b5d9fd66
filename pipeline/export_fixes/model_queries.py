"""During a trace, answer what a model asks torch, reject random seeds, and replace methods of torch's modules.

Models ask whether there is a GPU, and whether an export is running. torch selects its attention kernel by the GPU's
properties, and the kernels' results differ in memory layout. If the machine has a GPU, its own properties are returned.
The replaced methods are `nn.TransformerEncoder.forward` and `Module._apply`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pipeline.aten.types import Argument
from pipeline.errors import CaptureError, package_folder
from pipeline.export_fixes.error_attribution import NOT_MODEL_CODE, source_line_text
from pipeline.export_fixes.patching import Kernel

DEFAULT_CAPABILITY: Final = "8.0"
"""The compute capability that is assumed if settings name none: the lowest that engines support."""

capability: ContextVar[tuple[int, int]] = ContextVar("the compute capability that is traced for")
"""The compute capability that ``torch.cuda`` reports during a trace."""


def choose_gpu_attention_kernel(orig: Kernel, query: torch.Tensor, *args: Argument, **kwargs: Argument) -> object:
    """Replace torch's choice of an attention kernel: for GPU tensors, choose as a GPU would; else let torch choose."""
    return (_empty_attention_result if query.device.type == "cuda" else orig)(query, *args, **kwargs)


def copy_constant(orig: Kernel, self: torch.Tensor, *, device: torch.device | None = None, **rest: object) -> Argument:
    """Copy a constant as torch does in a trace, but copy to the CPU instead of a GPU, since there may be no GPU."""
    return orig(self, device=None if device is not None and device.type == "cuda" else device, **rest)


def _empty_attention_result(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Argument:
    """Return an attention result of undefined elements with the memory layout of a GPU's: [batch, position, head, size]
    if a fused kernel computes it (`_has_gpu_kernel`), else [batch, head, position, size]. In a trace below autograd,
    return the result of the operator that a GPU would run."""
    has_kernel, mode = _has_gpu_kernel(query, key, value, attn_mask, enable_gqa), get_proxy_mode()
    if mode is not None and not mode.pre_dispatch:
        given = (query, key, value, attn_mask)
        if has_kernel:
            call = torch.ops.aten._scaled_dot_product_efficient_attention
            return call(*given, False, dropout_p, is_causal, scale=scale)[0]
        further = {"scale": scale, "enable_gqa": enable_gqa}
        return torch.ops.aten._scaled_dot_product_attention_math(*given, dropout_p, is_causal, None, **further)[0]
    if not has_kernel:
        leading = torch.broadcast_shapes(query.shape[:-2], value.shape[:-2]) if not enable_gqa else query.shape[:-2]
        return query.new_empty((*leading, query.shape[-2], value.shape[-1]))
    batch, heads, length, _ = query.shape
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)


def _has_gpu_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, gqa: bool
) -> bool:
    """Return whether a GPU of compute capability 8.0 or later has a kernel for an attention. Flash attention
    supports half precision without a mask; efficient attention also supports a mask whose rows are multiples of 16
    bytes. Rows must be contiguous in memory: a mask must not be expanded, or a permuted tensor (ViT, T5)."""
    for each in (query, key, value, mask):
        if each is not None and not (each.dim() > 0 and statically_known_true(each.stride(-1) == 1)):
            return False
    sizes = (query.shape[-1], value.shape[-1])
    if query.dim() != 4 or query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    if query.dtype.itemsize == 2 and mask is None and sizes[0] == sizes[1] and sizes[0] <= 256:
        return True
    return not gqa and all(size % (16 // query.dtype.itemsize) == 0 for size in sizes)


def hide_tracing_from_model(orig: Kernel) -> bool:
    """Replace `torch.compiler.is_compiling` and the like: torch's code gets the real result, the model gets False.

    Models may run other code if they are exported: encoders of transformers then create no mask, which some of them
    need. The patch works for ``torch.compiler.is_exporting()``, not for ``from torch.compiler import is_exporting``.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(package_folder("pipeline")) and frame.f_back is not None:
        frame = frame.f_back
    return bool(orig()) and frame.f_code.co_filename.startswith(package_folder("torch"))


def reject_seeding(orig: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Reject a call that seeds a generator: torch.export would run it during the trace, but omit it from the graph."""
    frame = sys._getframe(2)  # ours is called by the function that stands in torch's place
    if frame.f_code.co_filename.startswith(NOT_MODEL_CODE):
        return orig(*args, **kwargs)
    place = source_line_text(frame.f_code.co_filename, frame.f_lineno)
    why = f"the model seeds torch's random generator at {place}, which a compiled program cannot do"
    raise CaptureError(why, "seed before calling the model, or sample the numbers once and store them in a buffer")


log = logging.getLogger(__name__)

PADDING_WARNING: Final = (
    "nn.TransformerEncoder returns zeros for padding under torch.no_grad(), and values where gradients are on, as they "
    "are now, and the program does the same: capture it under torch.no_grad() to have zeros"
)

gradients_are_on: ContextVar[bool] = ContextVar("gradients are on", default=False)
"""Whether gradients are enabled in the code that captures a model."""


def encode_with_zero_padding(
    orig: Callable[..., Tensor],
    encoder: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    """Replace ``nn.TransformerEncoder.forward``: write zeros at padding, as eager mode does without gradients.

    If padding is at the end of rows, eager mode packs the rows without padding, and pads them with zeros before the
    last norm. During a trace torch does not pack rows, so padding would get other values.
    """
    if mask is not None or src_key_padding_mask is None or not _eager_packs_rows(encoder, src):
        return orig(encoder, src, mask, src_key_padding_mask, is_causal)
    if gradients_are_on.get() and any(weight.requires_grad for weight in encoder.layers[0].parameters()):
        log.warning(PADDING_WARNING)
        return orig(encoder, src, mask, src_key_padding_mask, is_causal)
    output = src
    for layer in encoder.layers:
        output = layer(output, is_causal=bool(is_causal), src_key_padding_mask=src_key_padding_mask)
    padding = src_key_padding_mask != 0
    at_the_end = (padding[:, :-1] & ~padding[:, 1:]).any().logical_not()
    output = output.masked_fill((padding & at_the_end).unsqueeze(-1), 0.0)
    return output if encoder.norm is None else encoder.norm(output)


def _eager_packs_rows(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Return whether eager omits padding from rows: in evaluation mode, without autocast, for 3-d inputs, if nested
    tensors are enabled."""
    allowed = torch.backends.mha.get_fastpath_enabled() and not torch.is_autocast_enabled()
    asks = getattr(encoder, "use_nested_tensor", False) and getattr(encoder, "mask_check", True)
    return bool(allowed and asks) and not encoder.layers[0].training and src.dim() == 3


keep_weights: ContextVar[bool] = ContextVar("weights stay", default=False)
"""Whether ``model.to`` leaves parameters and buffers in place, and moves only other tensors."""


def apply_by_assignment(_: Kernel, module: torch.nn.Module, fn: Kernel, recurse: bool = True) -> torch.nn.Module:
    """Replace ``Module._apply``, for models whose ``forward`` runs ``self.router = self.router.to(torch.float32)``.

    torch swaps the contents of tensors, which fails for tensors of a trace. This function assigns the results to the
    module, and `restore_model` restores the originals after the trace.
    """
    if keep_weights.get():
        return module
    for child in module.children() if recurse else ():
        child._apply(fn)
    held: Argument
    for held in (module._parameters, module._buffers):
        with torch.no_grad():
            held.update({name: fn(tensor) for name, tensor in held.items() if tensor is not None})
    return module
