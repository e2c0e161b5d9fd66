"""Text architectures of transformers, small, with random weights: encoders, decoders, steps of decoding, and both."""

from __future__ import annotations

import transformers as hf
from attrs import evolve

from benchmarks.architectures import Architecture, by_example
from benchmarks.texts import BOTH, EXPERTS, SMALL, T5, auto, both, encoder, step
from benchmarks.zoo_decoders import DECODERS

ENCODERS = (
    encoder("albert", embedding_size=32),
    encoder("bert"),
    encoder("big_bird", attention_type="original_full"),
    encoder("camembert"),
    encoder("convbert", embedding_size=32),
    encoder("data2vec-text"),
    encoder("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16),
    encoder(
        "deberta-v2",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
    encoder("distilbert"),
    encoder("electra", embedding_size=32),
    encoder("ernie"),
    encoder("esm", position_embedding_type="rotary", mask_token_id=3),
    encoder("eurobert"),
    encoder("flaubert"),
    encoder("fnet"),
    Architecture(
        "funnel",
        "encoder",
        auto(
            hf.AutoModelForMaskedLM,
            "funnel",
            {"vocab_size": 100, "block_sizes": [1, 1], "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 96},
        ),
    ),
    encoder("ibert", quant_mode=False),
    by_example(encoder("longformer", attention_window=4, max_position_embeddings=80)),
    encoder("luke", entity_vocab_size=20, entity_emb_size=16),
    encoder("megatron-bert"),
    encoder("mobilebert", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32),
    encoder("modernbert", local_attention=8),
    encoder("mpnet"),
    encoder("mra"),
    encoder("nomic_bert"),
    encoder("nystromformer", num_landmarks=16, segment_means_seq_len=16),
    encoder("rembert", input_embedding_size=32, output_embedding_size=32),
    encoder("roberta", max_position_embeddings=80),
    encoder("roberta-prelayernorm", max_position_embeddings=80),
    encoder("roformer", embedding_size=32),
    encoder("squeezebert", embedding_size=64),
    encoder("xlm"),
    encoder("xlm-roberta", max_position_embeddings=80),
    encoder("xmod", max_position_embeddings=80, default_language="en_XX", languages=["en_XX"]),
    encoder("yoso", use_expectation=True),
)

BOTHS = (
    by_example(both("bart", **BOTH)),
    both("bigbird_pegasus", **BOTH, attention_type="original_full"),
    both("blenderbot", **BOTH),
    both("blenderbot-small", **BOTH),
    by_example(both("fsmt", **{**BOTH, "src_vocab_size": 100, "tgt_vocab_size": 100, "langs": ["en", "de"]})),
    by_example(
        both(
            "led",
            **BOTH,
            attention_window=4,
            max_encoder_position_embeddings=64,
            max_decoder_position_embeddings=64,
        )
    ),
    both("longt5", **T5, local_radius=4, encoder_attention_type="transient-global", global_block_size=4),
    both("m2m_100", **BOTH),
    both("marian", **BOTH),
    both("mbart", **BOTH),
    both("mt5", **T5),
    both("mvp", **BOTH),
    both(
        "nllb-moe",
        **{**BOTH, "num_experts": 4, "expert_capacity": 8, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
    ),
    both("pegasus", **BOTH),
    both("pegasus_x", **BOTH, block_size=8, num_global_tokens=4),
    both("plbart", **BOTH),
    both(
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
    both(
        "switch_transformers",
        **T5,
        num_experts=4,
        expert_capacity=8,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
    ),
    both("t5", **T5),
    both("umt5", **T5),
)

STEPS = (
    step("gemma2", sliding_window=64, query_pre_attn_scalar=16),
    step("gpt2", heads=4),
    step("gpt_neox", heads=4),
    step("llama"),
    step("mixtral", **EXPERTS),
    step("opt", heads=4, ffn_dim=96, word_embed_proj_dim=64),
    step("phi"),
    step("qwen3"),
)

HALVES = {
    "bart": ("float16",),
    "bert": ("float16",),
    "gemma2": ("bfloat16",),
    "gpt2": ("float16",),
    "mamba": ("float16",),
    "mistral": ("float16", "bfloat16"),
    "mixtral": ("float16",),
    "modernbert": ("bfloat16",),
    "t5": ("bfloat16",),
}
"""What some are compiled in beside float32."""

ARCHITECTURES = tuple(
    evolve(each, dtypes=(*each.dtypes, *HALVES.get(each.name, ()))) for each in (*ENCODERS, *DECODERS, *STEPS, *BOTHS)
)
