"""Encoders of text at real size."""

from __future__ import annotations

from benchmarks.real_models import Row, of_transformers
from benchmarks.signals import Given, ids, ones

BERT = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
DEBERTA = {
    **BERT,
    "vocab_size": 128100,
    "type_vocab_size": 0,
    "relative_attention": True,
    "max_relative_positions": -1,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
T5_XXL = {
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 4,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "use_cache": False,
}
MODERN = {
    "hidden_size": 1024,
    "intermediate_size": 2624,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "reference_compile": False,
}


def text(tokens: int, batch: int, vocabulary: int) -> dict[str, Given]:
    """Token ids with a mask that hides nothing."""
    return {"input_ids": ids(vocabulary, batch, tokens), "attention_mask": ones(batch, tokens)}


ROWS = (
    Row(
        "bert-large",
        "whole, 0.33 B; 8 by 512 tokens",
        of_transformers("BertModel", "BertConfig", **BERT),
        text(512, 8, 30522),
        small=True,
        heavy=2,
    ),
    Row(
        "deberta-v3-large",
        "whole, 0.43 B; 4 by 512 tokens",
        of_transformers("DebertaV2Model", "DebertaV2Config", **DEBERTA),
        text(512, 4, 128000),
        heavy=5,
    ),
    Row(
        "modernbert-large",
        "whole, 0.39 B; 4 by 1,024 tokens",
        of_transformers("ModernBertModel", "ModernBertConfig", **MODERN),
        text(1024, 4, 50000),
        heavy=2,
    ),
    Row(
        "xlm-roberta-xl",
        "6 of 36 layers, 2,560 wide; 2 by 512 tokens",
        of_transformers("XLMRobertaXLModel", "XLMRobertaXLConfig", num_hidden_layers=6),
        text(512, 2, 250000),
        small=True,
        heavy=4,
    ),
    Row(
        "t5-xxl-encoder",
        "4 of 24 layers, 4,096 wide; 2 by 512 tokens",
        of_transformers("T5EncoderModel", "T5Config", **T5_XXL),
        text(512, 2, 32000),
        small=True,
        heavy=4,
    ),
)
