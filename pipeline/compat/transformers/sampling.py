"""Decode tokens of a text model without waiting for the GPU after each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.generation.stopping_criteria import MaxLengthCriteria

from pipeline.compat.transformers.caches import Pretrained, goes_back

INPUTS: Final = {
    *("attention_mask", "position_ids", "cache_position", "use_cache", "past_key_values", "cache_params"),
    "logits_to_keep",
}
"""The arguments of a model that `decode_tokens` supports beside the prompt."""


class StopFlag:
    """Whether all sequences have ended, copied from the GPU while the host goes on."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.has_ended = torch.zeros((), dtype=torch.bool, pin_memory=on_gpu)
        self.copied = torch.cuda.Event() if on_gpu else None

    def copy(self, unfinished: torch.Tensor) -> None:
        """Start to copy the flag from ``unfinished`` [rows], which is 0 for each row that has ended."""
        self.has_ended.copy_(unfinished.max() == 0, non_blocking=True)
        if self.copied is not None:
            self.copied.record()

    def read(self) -> bool:
        """Wait for the copy, and return the flag."""
        if self.copied is not None:
            self.copied.synchronize()
        return bool(self.has_ended)


def can_decode(model: Pretrained, config: GenerationConfig, criteria: StoppingCriteriaList, inputs: Any) -> bool:
    """Return whether `decode_tokens` supports a call of ``generate``: text alone, a cache whose last token can be
    removed, and tokens as the only output."""
    asked = {name for name, value in inputs.items() if value is not None}
    no_parts = model.__dict__["_sight"] is None and model.__dict__["_embedded"] is None
    is_text = no_parts and {*model.runners} == {"decoder"}
    places = inputs.get("position_ids")
    plain = not (config.return_dict_in_generate or getattr(config, "is_assistant", False))
    plain = plain and (places is None or places.dim() == 2)
    return plain and is_text and asked <= INPUTS and bool(criteria.max_length) and goes_back(model.runners["decoder"])


def decode_tokens(
    model: Pretrained,
    ids: torch.Tensor,
    processors: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    inputs: dict[str, Any],
) -> torch.Tensor:
    """Return the prompt ``ids`` [rows, tokens] and the generated tokens, as transformers' ``_sample``. The host starts
    the next step before it reads whether all sequences have ended, and removes the step's token if they have."""
    outputs, name = model._prefill(ids, config, inputs), model.__dict__["_cache_name"]
    cache, positions = outputs[name], inputs.get("position_ids")
    positions = cache.mask[:, : cache.length].sum(-1, keepdim=True) if positions is None else positions[:, -1:] + 1
    unfinished, flag = torch.ones(ids.shape[0], dtype=torch.long, device=ids.device), StopFlag(ids.device)
    pads = config._pad_token_tensor if any(hasattr(each, "eos_token_id") for each in criteria) else None
    limit = int(criteria.max_length or 0)
    may_end_early = any(not isinstance(each, MaxLengthCriteria) for each in criteria)
    while True:
        scores = processors(ids, outputs.logits[:, -1].to(ids.device, torch.float32, copy=True))
        if config.do_sample:
            tokens = torch.multinomial(torch.softmax(scores, -1), num_samples=1).squeeze(1)
        else:
            tokens = scores.argmax(-1)
        if pads is not None:
            tokens = torch.where(unfinished.bool(), tokens, pads.to(ids.device))
        ids = torch.cat([ids, tokens[:, None]], -1)
        if may_end_early:
            unfinished = unfinished & ~criteria(ids, None)
            flag.copy(unfinished)
        is_full = cache.length >= cache.positions
        if ids.shape[1] >= limit or (is_full and may_end_early and flag.read()):
            return ids
        outputs = model(input_ids=tokens[:, None], position_ids=positions, **{name: cache})
        if may_end_early and flag.read():
            cache.crop(-1)
            return ids
        positions = positions + 1
