"""The models of ``benchmarks.tokens``, with random weights: decoders like Llama, and some with recurrent states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

DEVICE: Final = "cuda"
EIGHT: Final = {"hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
SIZES: Final[Mapping[str, Mapping[str, int]]] = {
    "1.1B": {"hidden_size": 2048, "num_hidden_layers": 22, "intermediate_size": 5632},
    "3B": {"hidden_size": 3072, "num_hidden_layers": 28, "intermediate_size": 8192, "num_attention_heads": 24},
    "8B": {"num_hidden_layers": 32, **EIGHT},
    "8B, 16 layers": {"num_hidden_layers": 16, **EIGHT},
}
MAMBA2: Final = {
    "vocab_size": 50288,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_heads": 64,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 1,
    "tie_word_embeddings": True,
}
LFM2: Final = {
    "vocab_size": 65536,
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "layer_types": ["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
}
QWEN: Final = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "tie_word_embeddings": True,
}
WITH_STATES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "Mamba-2 1.3B": ("Mamba2Config", MAMBA2),
    "LFM2 1.2B": ("Lfm2Config", LFM2),
    "Qwen3.5 0.7B": ("Qwen3_5TextConfig", QWEN),
}
"""The configuration's class and what it says. Qwen3.5 has three layers of gated DeltaNet for one of attention."""


def model_of(size: str, dtype: torch.dtype, positions: int) -> Any:
    """A model by its name; of Llama's kind with 32 heads, 4 of keys and values, where its row says nothing else."""
    with torch.device(DEVICE):
        torch.manual_seed(0)
        if size in WITH_STATES:
            kind, fields = WITH_STATES[size]
            config = getattr(transformers, kind)(**fields, pad_token_id=0)
            return transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
        shape = {"num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "pad_token_id": 0}
        config = LlamaConfig(**{**shape, **SIZES[size]}, max_position_embeddings=positions)
        return LlamaForCausalLM(config).to(dtype).eval()


def bytes_read(model: Any) -> int:
    """Of the weights, what a token reads: all, but for embeddings that the head does not read as well."""
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return sum(p.nbytes for p in model.parameters()) - (0 if table is head else table.nbytes)  # type: ignore[no-any-return]
