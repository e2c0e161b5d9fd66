"""Replace methods of torch's modules while a model is traced: `nn.TransformerEncoder.forward`, and `Module._apply`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import torch
from torch import Tensor, nn

from pipeline.aten.types import Argument
from pipeline.export_fixes.patching import Kernel

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
