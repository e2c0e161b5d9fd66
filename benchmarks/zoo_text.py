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


def _auto(auto: Any, name: str, fields: dict[str, Any], inputs: Callable[[], Any] = tokens) -> Callable[[], Made]:
    """The model that an Auto class makes of the configuration of that name."""
    return lambda: (auto.from_config(hf.AutoConfig.for_model(name, **fields)), *inputs())


def _encoder(name: str, **fields: Any) -> Architecture:
    return Architecture(name, "encoder", _auto(hf.AutoModelForMaskedLM, name, {**SMALL, **fields}))


def _decoder(name: str, **fields: Any) -> Architecture:
    return Architecture(name, "decoder", _auto(hf.AutoModelForCausalLM, name, {**SMALL, **DECODER, **fields}))


def _both(name: str, **fields: Any) -> Architecture:
    """An encoder and a decoder."""

    def inputs() -> tuple[dict[str, Any], dict[str, Any]]:
        kwargs, dims = tokens()
        target = {0: dims["input_ids"][0], 1: Dim("target", min=2, max=32)}
        return {**kwargs, "decoder_input_ids": torch.randint(3, 100, (2, 6))}, {**dims, "decoder_input_ids": target}

    make = _auto(hf.AutoModelForSeq2SeqLM, name, fields, inputs)
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


def _step(name: str, *, heads: int = 2, **fields: Any) -> Architecture:
    def make() -> Made:
        config = hf.AutoConfig.for_model(name, **{**SMALL, **DECODER, "use_cache": True, **fields})
        model = Step(hf.AutoModelForCausalLM.from_config(config), 16)
        caches = [[torch.randn(2, heads, 16, 16) for _ in range(2)] for _ in range(2)]
        kwargs = {"input_ids": torch.randint(3, 100, (2, 1)), "position": torch.tensor(7)}
        batch = {0: Dim("batch", min=1, max=4)}
        dims = {"input_ids": batch, "position": None, "keys": [batch] * 2, "values": [batch] * 2}
        return model, {**kwargs, "keys": caches[0], "values": caches[1]}, dims

    return Architecture(name, "decode step", make)


ENCODERS = (
    _encoder("albert", embedding_size=32),
    _encoder("bert"),
    _encoder("big_bird", attention_type="original_full"),
    _encoder("camembert"),
    _encoder("convbert", embedding_size=32),
    _encoder("data2vec-text"),
    _encoder("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16),
    _encoder(
        "deberta-v2",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
    _encoder("distilbert"),
    _encoder("electra", embedding_size=32),
    _encoder("ernie"),
    _encoder("esm", position_embedding_type="rotary", mask_token_id=3),
    _encoder("eurobert"),
    _encoder("flaubert"),
    _encoder("fnet"),
    Architecture(
        "funnel",
        "encoder",
        _auto(
            hf.AutoModelForMaskedLM,
            "funnel",
            {"vocab_size": 100, "block_sizes": [1, 1], "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 96},
        ),
    ),
    _encoder("ibert", quant_mode=False),
    _encoder("longformer", attention_window=4, max_position_embeddings=80),
    _encoder("luke", entity_vocab_size=20, entity_emb_size=16),
    _encoder("megatron-bert"),
    _encoder("mobilebert", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32),
    _encoder("modernbert", local_attention=8),
    _encoder("mpnet", relative_attention_num_buckets=8),
    _encoder("mra"),
    _encoder("nomic_bert"),
    _encoder("nystromformer", num_landmarks=4, segment_means_seq_len=16),
    _encoder("rembert", input_embedding_size=32, output_embedding_size=32),
    _encoder("roberta", max_position_embeddings=80),
    _encoder("roberta-prelayernorm", max_position_embeddings=80),
    _encoder("roformer", embedding_size=32),
    _encoder("squeezebert", embedding_size=64),
    _encoder("xlm"),
    _encoder("xlm-roberta", max_position_embeddings=80),
    _encoder("xmod", max_position_embeddings=80, default_language="en_XX", languages=["en_XX"]),
    _encoder("yoso", use_expectation=True),
)

DECODERS = (
    _decoder("apertus"),
    _decoder("arcee"),
    _decoder("bamba", attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=8),
    _decoder("biogpt"),
    _decoder("bitnet"),
    _decoder("bloom"),
    _decoder("codegen", rotary_dim=8, n_ctx=64, n_positions=64),
    _decoder("cohere"),
    _decoder("cohere2", sliding_window=8),
    _decoder("ctrl", dff=96),
    _decoder(
        "dbrx",
        attn_config={"kv_n_heads": 2, "rope_theta": 1e4},
        ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    ),
    _decoder("deepseek_v2", **EXPERTS | LATENT),
    _decoder("deepseek_v3", **EXPERTS | LATENT),
    _decoder("diffllama"),
    _decoder("doge"),
    _decoder("dots1", **EXPERTS, n_shared_experts=1),
    _decoder("ernie4_5"),
    _decoder("ernie4_5_moe", **EXPERTS, moe_k=2, moe_num_experts=4),
    _decoder("exaone4", sliding_window=8),
    Architecture(
        "falcon",
        "decoder",
        _auto(hf.AutoModelForCausalLM, "falcon", {**SMALL, "ffn_hidden_size": 96, "use_cache": False}),
    ),
    _decoder("falcon_h1", mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=8),
    _decoder("falcon_mamba", state_size=8, time_step_rank=4),
    _decoder("flex_olmo", **EXPERTS),
    _decoder("gemma"),
    _decoder("gemma2", sliding_window=8, query_pre_attn_scalar=16),
    _decoder("gemma3_text", sliding_window=8, query_pre_attn_scalar=16),
    _decoder("glm"),
    _decoder("glm4"),
    _decoder("glm4_moe", **EXPERTS),
    _decoder("gpt2"),
    _decoder("gpt_bigcode"),
    _decoder("gpt_neo", num_layers=2, attention_types=[[["global", "local"], 1]], window_size=8),
    _decoder("gpt_neox"),
    _decoder("gpt_oss", **EXPERTS, sliding_window=8),
    _decoder("gptj", rotary_dim=8),
    _decoder("granite"),
    _decoder("granitemoe", **EXPERTS),
    _decoder(
        "granitemoehybrid",
        **EXPERTS,
        layer_types=["mamba", "attention"],
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_chunk_size=8,
    ),
    _decoder("helium"),
    _decoder("hunyuan_v1_dense"),
    _decoder(
        "jamba",
        **EXPERTS,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    _decoder("jetmoe", **EXPERTS, kv_channels=16),
    _decoder("lfm2", full_attn_idxs=[1], block_multiple_of=16),
    _decoder("llama"),
    _decoder("llama4_text", **EXPERTS, intermediate_size_mlp=96, attention_chunk_size=16),
    _decoder(
        "longcat_flash",
        **EXPERTS | LATENT,
        num_layers=2,
        ffn_hidden_size=96,
        expert_ffn_hidden_size=32,
        zero_expert_num=2,
        moe_topk=2,
    ),
    _decoder("mamba", state_size=8, time_step_rank=4),
    _decoder("mamba2", num_heads=8, state_size=8, chunk_size=8, n_groups=2, expand=2, head_dim=16),
    _decoder("minimax", **EXPERTS, block_size=8),
    _decoder("ministral", sliding_window=8),
    _decoder("mistral", sliding_window=8),
    _decoder("mixtral", **EXPERTS),
    _decoder("modernbert-decoder", local_attention=8),
    _decoder("mpt"),
    _decoder("nanochat"),
    _decoder("nemotron"),
    _decoder("olmo"),
    _decoder("olmo2"),
    _decoder("olmo3", sliding_window=8),
    _decoder("olmoe", **EXPERTS),
    _decoder("openai-gpt"),
    _decoder("opt", ffn_dim=96, word_embed_proj_dim=64),
    _decoder("persimmon"),
    _decoder("phi"),
    _decoder("phi3"),
    _decoder("phimoe", **EXPERTS),
    _decoder("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    _decoder("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=32),
    _decoder("qwen3"),
    _decoder("qwen3_moe", **EXPERTS),
    _decoder(
        "qwen3_next",
        **EXPERTS,
        shared_expert_intermediate_size=32,
        layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    ),
    _decoder("recurrent_gemma", block_types=["recurrent", "attention"], attention_window_size=8, lru_width=64),
    _decoder("rwkv", attention_hidden_size=64, context_length=64),
    _decoder("seed_oss"),
    _decoder("smollm3"),
    _decoder("stablelm"),
    _decoder("starcoder2", sliding_window=8),
    _decoder("vaultgemma", sliding_window=8),
    _decoder("xglm", ffn_dim=96, attention_heads=4, num_layers=2),
    Architecture(
        "xlnet",
        "decoder",
        _auto(
            hf.AutoModelForCausalLM,
            "xlnet",
            {"vocab_size": 100, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 96, "use_mems_eval": False},
        ),
    ),
    _decoder("xlstm", num_heads=4, qk_dim_factor=0.5, chunk_size=8),
    _decoder(
        "zamba",
        num_hidden_layers=3,
        layers_block_type=["mamba", "hybrid", "hybrid"],
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
        attention_hidden_size=128,
        attention_head_dim=32,
        n_mamba_heads=2,
    ),
    _decoder(
        "zamba2",
        layers_block_type=["mamba", "hybrid"],
        hybrid_layer_ids=[1],
        mamba_d_state=8,
        chunk_size=8,
        n_mamba_heads=8,
        mamba_headdim=16,
        num_mem_blocks=1,
    ),
)

BOTHS = (
    _both("bart", **BOTH),
    _both("bigbird_pegasus", **BOTH, attention_type="original_full"),
    _both("blenderbot", **BOTH),
    _both("blenderbot-small", **BOTH),
    _both("fsmt", **{**BOTH, "src_vocab_size": 100, "tgt_vocab_size": 100, "langs": ["en", "de"]}),
    _both(
        "led",
        **{**BOTH, "attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
    ),
    _both("longt5", **T5, local_radius=4, encoder_attention_type="transient-global", global_block_size=4),
    _both("m2m_100", **BOTH),
    _both("marian", **BOTH),
    _both("mbart", **BOTH),
    _both("mt5", **T5),
    _both("mvp", **BOTH),
    _both(
        "nllb-moe",
        **{**BOTH, "num_experts": 4, "expert_capacity": 8, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
    ),
    _both("pegasus", **BOTH),
    _both("pegasus_x", **BOTH, block_size=8, num_global_tokens=4),
    _both("plbart", **BOTH),
    _both(
        "prophetnet",
        **{
            **{k: v for k, v in SMALL.items() if k != "num_hidden_layers"},
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "use_cache": False,
            "ngram": 2,
        },
    ),
    _both(
        "switch_transformers",
        **T5,
        num_experts=4,
        expert_capacity=8,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
    ),
    _both("t5", **T5),
    _both("umt5", **T5),
)

STEPS = (
    _step("gemma2", sliding_window=64, query_pre_attn_scalar=16),
    _step("gpt2", heads=4),
    _step("gpt_neox", heads=4),
    _step("llama"),
    _step("mixtral", **EXPERTS),
    _step("opt", heads=4, ffn_dim=96, word_embed_proj_dim=64),
    _step("phi"),
    _step("qwen3"),
)

ARCHITECTURES = (*ENCODERS, *DECODERS, *STEPS, *BOTHS)
