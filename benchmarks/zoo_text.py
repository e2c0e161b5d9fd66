"""Text architectures of transformers, small, with random weights: encoders, decoders, and both together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch.export import Dim

from benchmarks.architectures import Architecture, Made

SMALL = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
"""Fields of a configuration that most have; ``ALSO`` are those of decoders."""

ALSO = {"num_key_value_heads": 2, "head_dim": 16, "use_cache": False}


def tokens(batch: int = 2, length: int = 12) -> tuple[dict[str, Any], dict[str, Any]]:
    """Token ids with an attention mask, batch and sequence dynamic."""
    ids = torch.randint(3, 100, (batch, length))
    dims = {0: Dim("batch", min=1, max=4), 1: Dim("sequence", min=2, max=32)}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, {"input_ids": dims, "attention_mask": dims}


def _auto(auto: Any, name: str, fields: dict[str, Any]) -> Callable[[], Made]:
    """The model that an Auto class makes of the configuration of that name."""

    def make() -> Made:
        model = auto.from_config(hf.AutoConfig.for_model(name, **fields))
        return model, *tokens()

    return make


def _encoder(name: str, **fields: Any) -> Architecture:
    return Architecture(name, "encoder", _auto(hf.AutoModelForMaskedLM, name, {**SMALL, **fields}))


def _decoder(name: str, **fields: Any) -> Architecture:
    return Architecture(name, "decoder", _auto(hf.AutoModelForCausalLM, name, {**SMALL, **ALSO, **fields}))


ARCHITECTURES = (
    _encoder("bert"),
    _encoder("electra", embedding_size=32),
    _decoder("mistral"),
    _decoder("qwen3"),
)
