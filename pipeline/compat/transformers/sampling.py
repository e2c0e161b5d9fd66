"""Generate tokens of a text model without waiting for the GPU after each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.generation.stopping_criteria import MaxLengthCriteria

from pipeline.compat.transformers.caches import Pretrained, can_crop

INPUTS: Final = {
    *("attention_mask", "position_ids", "cache_position", "use_cache", "past_key_values", "cache_params"),
    "logits_to_keep",
}
"""The model arguments, besides the prompt, that `decode_ahead` supports."""


class LastStep:
    """Host copies of what a decoder step computed on the GPU: its tokens [rows], and whether all sequences ended."""

    def __init__(self, rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.tokens = torch.zeros(rows, dtype=torch.long, pin_memory=on_gpu)
        self.has_ended = torch.zeros((), dtype=torch.bool, pin_memory=on_gpu)
        self.copied = torch.cuda.Event() if on_gpu else None

    def start_copy(self, tokens: torch.Tensor, unfinished_rows: torch.Tensor) -> None:
        """Start to copy tokens, and whether all rows ended, to the host; ``unfinished_rows`` is 0 for ended rows."""
        self.tokens.copy_(tokens, non_blocking=True)
        self.has_ended.copy_(unfinished_rows.max() == 0, non_blocking=True)
        if self.copied is not None:
            self.copied.record()

    def read_has_ended(self) -> bool:
        """Wait until the copy to the host (`start_copy`) is complete; return whether all sequences have ended."""
        if self.copied is not None:
            self.copied.synchronize()
        return bool(self.has_ended)


def can_decode_ahead(model: Pretrained, config: GenerationConfig, criteria: StoppingCriteriaList, inputs: Any) -> bool:
    """Return whether `decode_ahead` supports a call of ``generate``: the prompt is text, the cache's last token can be
    removed, and the only output is tokens."""
    asked = {name for name, value in inputs.items() if value is not None}
    no_parts = model.__dict__["_spec"] is None and model.__dict__["_embedding_spec"] is None
    is_text = no_parts and {*model.runners} == {"decoder"}
    places = inputs.get("position_ids")
    plain = not (config.return_dict_in_generate or getattr(config, "is_assistant", False))
    plain = plain and (places is None or places.dim() == 2)
    return plain and is_text and asked <= INPUTS and bool(criteria.max_length) and can_crop(model.runners["decoder"])


def decode_ahead(
    model: Pretrained,
    ids: torch.Tensor,
    processors: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    streamer: Any,
    inputs: dict[str, Any],
) -> torch.Tensor:
    """Generate tokens like transformers' ``_sample``: return the prompt ``ids`` [rows, tokens] followed by new tokens.
    The host starts the next decoder step before it reads whether all sequences have ended; if they have, it removes
    that step's token. The streamer, if given, gets each step's tokens when they have been read."""
    outputs, name = model._prefill(ids, config, inputs), model.__dict__["_cache_name"]
    cache, positions = outputs[name], inputs.get("position_ids")
    positions = cache.mask[:, : cache.length].sum(-1, keepdim=True) if positions is None else positions[:, -1:] + 1
    unfinished, step = torch.ones(ids.shape[0], dtype=torch.long, device=ids.device), LastStep(ids.shape[0], ids.device)
    pads = config._pad_token_tensor if any(hasattr(each, "eos_token_id") for each in criteria) else None
    limit = int(criteria.max_length or 0)
    may_end_early = any(not isinstance(each, MaxLengthCriteria) for each in criteria)
    is_read = may_end_early or streamer is not None
    while True:
        scores = processors(ids, outputs.logits[:, -1].to(ids.device, torch.float32, copy=True))
        tokens = torch.multinomial(scores.softmax(-1), 1).squeeze(1) if config.do_sample else scores.argmax(-1)
        if pads is not None:
            tokens = torch.where(unfinished.bool(), tokens, pads.to(ids.device))
        ids = torch.cat([ids, tokens[:, None]], -1)
        if may_end_early:
            unfinished = unfinished & ~criteria(ids, None)
        if is_read:
            step.start_copy(tokens, unfinished)
        is_full = cache.length >= cache.positions
        is_last = ids.shape[1] >= limit or (is_full and is_read and step.read_has_ended())
        if not is_last:
            outputs = model(input_ids=tokens[:, None], position_ids=positions, **{name: cache})
        has_ended = is_read and step.read_has_ended()
        if streamer is not None:
            streamer.put(step.tokens.clone())
        if is_last or has_ended:
            if not is_last:
                cache.crop(-1)
            if streamer is not None:
                streamer.end()
            return ids
        positions = positions + 1
