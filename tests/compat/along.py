"""What eager says of tokens that a compiled model has chosen: whatever a tie decided, its scores are those of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def logits(model: Any, inputs: Mapping[str, torch.Tensor], sequences: torch.Tensor, steps: int) -> torch.Tensor:
    """Eager's logits [rows, steps, vocabulary] for the last ``steps`` tokens of sequences, each of which goes on from
    one of the prompts in ``inputs``, which have as many sequences each."""
    each = sequences.shape[0] // next(iter(inputs.values())).shape[0]
    given = {name: value.repeat_interleave(each, 0) for name, value in inputs.items()}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = sequences
    else:
        ones = torch.ones_like(sequences[:, given["input_ids"].shape[1] :])
        mask = torch.cat([given["attention_mask"], ones], 1)
        given = {"input_ids": sequences, "attention_mask": mask}
        if "position_ids" in model.forward.__code__.co_varnames:
            given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        found: torch.Tensor = model(**given, use_cache=False).logits[:, -steps - 1 : -1].float()
    return found


def log_probability(logits: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
    """The logarithm of the probability [rows] of the last tokens of sequences, as many as there are logits."""
    each = logits.log_softmax(-1).gather(-1, sequences[:, -logits.shape[1] :, None])
    return each[..., 0].sum(-1)
