"""How text architectures of transformers are made: fields of small configurations, and the inputs of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch.export import Dim

from benchmarks.architectures import Architecture, Made, lively

SMALL = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Fields of a configuration that most have; those below are for a kind of models. What a configuration does not know
does not matter to its model."""

DECODER = {"num_key_value_heads": 2, "head_dim": 16, "use_cache": False}

EXPERTS = {
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}

LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 16,
    "num_key_value_heads": 4,
}
"""Multi-head latent attention."""

BOTH = {
    "vocab_size": 100,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "use_cache": False,
}

T5 = {"vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 2}
T5 |= {"num_heads": 4, "use_cache": False}


def tokens(length: int = 12, *, least: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Token ids with an attention mask, batch and sequence dynamic."""
    ids = torch.randint(3, 100, (2, length))
    dims = {0: Dim("batch", min=1, max=4), 1: Dim("sequence", min=least, max=32)}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, {"input_ids": dims, "attention_mask": dims}


def auto(auto: Any, name: str, fields: dict[str, Any], inputs: Callable[[], Any] = tokens) -> Callable[[], Made]:
    """The model that an Auto class makes of the configuration of that name."""
    return lambda: (lively(auto.from_config(hf.AutoConfig.for_model(name, **fields))), *inputs())


def encoder(name: str, **fields: Any) -> Architecture:
    """A masked language model."""
    return Architecture(name, "encoder", auto(hf.AutoModelForMaskedLM, name, {**SMALL, **fields}))


def decoder(name: str, **fields: Any) -> Architecture:
    """A causal language model."""
    return Architecture(name, "decoder", auto(hf.AutoModelForCausalLM, name, {**SMALL, **DECODER, **fields}))


def both(name: str, **fields: Any) -> Architecture:
    """An encoder and a decoder."""

    def inputs() -> tuple[dict[str, Any], dict[str, Any]]:
        kwargs, dims = tokens()
        target = {0: dims["input_ids"][0], 1: Dim("target", min=2, max=32)}
        return {**kwargs, "decoder_input_ids": torch.randint(3, 100, (2, 6))}, {**dims, "decoder_input_ids": target}

    make = auto(hf.AutoModelForSeq2SeqLM, name, fields, inputs)
    return Architecture(name, "encoder-decoder", make)


class Step(torch.nn.Module):
    """One step of decoding: a token, where it stands, and a cache of fixed length, which is written to.

    A shape of a cache is [batch, heads, length, channels]; keys and values are lists with one for each layer.
    """

    def __init__(self, model: Any, length: int) -> None:
        super().__init__()
        self.model, self.length = model, length

    def forward(
        self, input_ids: torch.Tensor, position: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> torch.Tensor:
        cache = hf.StaticCache(config=self.model.config, max_cache_len=self.length)
        for layer, key, value in zip(cache.layers, keys, values, strict=True):
            layer.lazy_initialization(key, value)
            layer.keys, layer.values, layer.cumulative_length = key, value, position.clone()
        logits: torch.Tensor = self.model(
            input_ids, position_ids=position.expand(input_ids.shape), past_key_values=cache, use_cache=True
        ).logits
        return logits


def step(name: str, *, heads: int = 2, **fields: Any) -> Architecture:
    """One step of decoding with a cache of 16 places, of which 7 are taken."""

    def make() -> Made:
        config = hf.AutoConfig.for_model(name, **{**SMALL, **DECODER, "use_cache": True, **fields})
        model = Step(lively(hf.AutoModelForCausalLM.from_config(config)), 16)
        caches = [[torch.randn(2, heads, 16, 16) for _ in range(2)] for _ in range(2)]
        kwargs = {"input_ids": torch.randint(3, 100, (2, 1)), "position": torch.tensor(7)}
        batch = {0: Dim("batch", min=1, max=4)}
        dims = {"input_ids": batch, "position": None, "keys": [batch] * 2, "values": [batch] * 2}
        return model, {**kwargs, "keys": caches[0], "values": caches[1]}, dims

    return Architecture(name, "decode step", make)
