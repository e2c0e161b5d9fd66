"""Zero the padded rows of ``nn.TransformerEncoder`` as eager does without gradients.

Eager then packs the rows of a batch without their padding, if that is at their end, and fills up with zeros before the
last norm. While torch traces, it does not, and padded places have values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final

import torch
from torch import Tensor, nn

from pipeline.export_fixes.interrupts import set_to

log = logging.getLogger(__name__)

OTHERWISE: Final = (
    "nn.TransformerEncoder returns zeros for padding under torch.no_grad(), and values where gradients are on, as they "
    "are now, and the program does the same: capture it under torch.no_grad() to have zeros"
)

_gradients: ContextVar[bool] = ContextVar("gradients are on", default=False)


def as_called() -> AbstractContextManager[bool]:
    """Return a context in which models are captured in the current gradient mode."""
    return set_to(_gradients, torch.is_grad_enabled())


def zeroing(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap ``nn.TransformerEncoder.forward``."""

    def forward(
        encoder: nn.TransformerEncoder,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        if mask is not None or src_key_padding_mask is None or not _packs(encoder, src):
            return own(encoder, src, mask, src_key_padding_mask, is_causal)
        if _gradients.get() and any(weight.requires_grad for weight in encoder.layers[0].parameters()):
            log.warning(OTHERWISE)
            return own(encoder, src, mask, src_key_padding_mask, is_causal)
        output = src
        for layer in encoder.layers:
            output = layer(output, is_causal=bool(is_causal), src_key_padding_mask=src_key_padding_mask)
        padding = src_key_padding_mask != 0
        at_the_end = (padding[:, :-1] & ~padding[:, 1:]).any().logical_not()
        output = output.masked_fill((padding & at_the_end).unsqueeze(-1), 0.0)
        return output if encoder.norm is None else encoder.norm(output)

    return forward


def _packs(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Return whether eager packs rows: without gradients, depending on the mask."""
    allowed = torch.backends.mha.get_fastpath_enabled() and not torch.is_autocast_enabled()
    asks = getattr(encoder, "use_nested_tensor", False) and getattr(encoder, "mask_check", True)
    return bool(allowed and asks) and not encoder.layers[0].training and src.dim() == 3
