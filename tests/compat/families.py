"""Small language models of transformers with random weights, a family each; and how they generate by themselves."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import pytest
import torch

import pipeline

SMALL: Final = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GPT2: Final = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_token_id": None}
BLOOM: Final = {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4, "eos_token_id": None}
OPT: Final = {
    **{
        k: v for k, v in SMALL.items() if k in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    },
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": None,
}
FALCON: Final = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "eos_token_id": None,
    "new_decoder_architecture": True,
    "num_kv_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
}
T5: Final = {
    "vocab_size": 99,
    "d_model": 32,
    "d_ff": 48,
    "d_kv": 8,
    "num_layers": 2,
    "num_heads": 4,
    "eos_token_id": None,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
SWITCH: Final = {
    **T5,
    "num_decoder_layers": 2,
    "num_experts": 4,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
}
WHISPER: Final = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "max_target_positions": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "decoder_start_token_id": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
WINDOW: Final = {"sliding_window": 8}
GEMMA: Final = {**SMALL, **WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
LATENT: Final = {
    **{name: value for name, value in SMALL.items() if name not in ("head_dim", "num_key_value_heads")},
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SPARSE: Final = {"index_n_heads": 16, "index_head_dim": 16, "index_topk": 6}
"""With so many heads no two positions tie."""

FAMILIES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt_neox": ("GPTNeoXForCausalLM", SMALL),
    "llama": ("LlamaForCausalLM", SMALL),
    "mistral": ("MistralForCausalLM", {**SMALL, **WINDOW}),
    "qwen2": ("Qwen2ForCausalLM", SMALL),
    "qwen3": ("Qwen3ForCausalLM", SMALL),
    "gemma2": ("Gemma2ForCausalLM", {**SMALL, **WINDOW}),
    "gemma3": ("Gemma3ForCausalLM", GEMMA),
    "phi3": ("Phi3ForCausalLM", SMALL),
    "falcon": ("FalconForCausalLM", FALCON),
    "bloom": ("BloomForCausalLM", BLOOM),
    "opt": ("OPTForCausalLM", OPT),
    "stablelm": ("StableLmForCausalLM", SMALL),
    "olmo2": ("Olmo2ForCausalLM", SMALL),
    "granite": ("GraniteForCausalLM", SMALL),
    "cohere": ("CohereForCausalLM", SMALL),
    "smollm3": ("SmolLM3ForCausalLM", SMALL),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "deepseek_v32": ("DeepseekV32ForCausalLM", {**LATENT, **SPARSE}),
    "switch": ("SwitchTransformersForConditionalGeneration", SWITCH),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5gemma": ("T5GemmaForConditionalGeneration", {"encoder": GEMMA, "decoder": GEMMA, **SMALL}),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
}
"""The class and what its small configuration says, by the name of the family."""

DELTA: Final = {
    **SMALL,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
MAMBA: Final = {
    **{name: SMALL[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "pad_token_id")},
    "state_size": 8,
    "initializer_range": 0.02,
    "eos_token_id": None,
    "bos_token_id": 1,
}
JAMBA: Final = {**SMALL, "mamba_d_state": 8, "mamba_dt_rank": 4}
HEADS: Final = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 16}
EXPERTS: Final = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
KIMI: Final = {
    **LATENT,
    "num_experts_per_tok": 4,  # all: which two have the largest scores, rounding decides
    "num_key_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_attn_config": {"num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4},
}
NEMOTRON: Final = {
    **{name: value for name, value in SMALL.items() if name != "num_hidden_layers"},
    **EXPERTS,
    "layers_block_type": ["mamba", "attention", "moe"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 8,
    "chunk_size": 16,
    "n_routed_experts": 4,
    "moe_shared_expert_intermediate_size": 16,
}
ZAMBA2: Final = {
    **SMALL,
    "mamba_d_state": 8,
    "mamba_ngroups": 2,
    "n_mamba_heads": 8,
    "mamba_headdim": 8,
    "chunk_size": 16,
    "num_hidden_layers": 3,
    "layers_block_type": ["mamba", "hybrid", "mamba"],
    "num_mem_blocks": 1,
}

WITH_STATES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "bamba": ("BambaForCausalLM", {**SMALL, **HEADS, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1ForCausalLM", {**SMALL, **HEADS, "mamba_d_ssm": 64}),
    "jamba": ("JambaForCausalLM", {**JAMBA, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4}),
    "kimi_linear": ("KimiLinearForCausalLM", KIMI),
    "lfm2": ("Lfm2ForCausalLM", {**SMALL, "layer_types": ["conv", "full_attention"]}),
    "mamba": ("MambaForCausalLM", {**MAMBA, "time_step_rank": 4}),
    "mamba2": ("Mamba2ForCausalLM", {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 16}),
    "nemotron_h": ("NemotronHForCausalLM", NEMOTRON),
    "olmo_hybrid": ("OlmoHybridForCausalLM", DELTA),
    "qwen3_5": ("Qwen3_5ForCausalLM", DELTA),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        {**DELTA, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16},
    ),
    "zamba": (
        "ZambaForCausalLM",
        {**JAMBA, "n_mamba_heads": 2, "num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 2},
    ),
    "zamba2": ("Zamba2ForCausalLM", ZAMBA2),
}
"""Families whose layers, or some of them, have recurrent states."""

OF_ONE_ROW: Final = ("bloom", "gemma2", "llama", "phi3", "qwen2", "stablelm", "t5", "whisper")
"""Families that differ in what is before and behind their linear layers."""

ALIKE: Final = ("qwen2", "olmo2", "granite", "smollm3", "stablelm")
"""Families whose code is that of another, but for a bias, a factor or the place of a norm."""


def model(family: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """A small model with random weights, large enough for its tokens to differ; ``more`` of its configuration."""
    import transformers

    kind, fields = {**FAMILIES, **WITH_STATES}[family]
    torch.manual_seed(0)
    if not hasattr(transformers, kind):
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    cls = getattr(transformers, kind)
    made = cls(cls.config_class(**{**fields, **more})).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() > 1 and not name.endswith("A_log"):  # a rate's logarithm
                parameter.mul_(4)
    made.generation_config.eos_token_id = None
    return made.to(dtype)


def prompts(family: str, lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Inputs of ``generate``: a batch of prompts of several lengths, padded on the left; or features of sound."""
    drawn = torch.Generator().manual_seed(1)
    if family == "whisper":
        return {"input_features": torch.randn(len(lengths), 8, 24, generator=drawn)}
    ids = torch.randint(2, 99, (len(lengths), max(lengths)), generator=drawn)
    mask = torch.tensor([[0] * (max(lengths) - n) + [1] * n for n in lengths])
    return {"input_ids": ids * mask, "attention_mask": mask}


def generated(model: Any, inputs: Mapping[str, torch.Tensor], steps: int, **options: Any) -> torch.Tensor:
    """Tokens by the model's own ``generate``, greedy if no options say otherwise."""
    given = {"max_new_tokens": steps, "min_new_tokens": steps, "do_sample": False, **options}
    return model.generate(**inputs, **given)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=8)
def compiled(family: str, **sizes: Any) -> Any:
    """A family's model over networks that the reference executor runs: none is built, and the cache is a new one."""
    from pipeline.compat.transformers import compile_for_generation

    unbuilt = pipeline.default().replace("build", pipeline.stages.unbuilt)
    return compile_for_generation(model(family), executor="reference", compile=unbuilt, **sizes)


class Streamed:
    """A streamer that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.got.append(tokens.tolist())

    def end(self) -> None:
        self.got.append("end")
