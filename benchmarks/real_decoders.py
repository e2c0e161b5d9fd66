"""Language models at real size: prompts through some of their layers, and single tokens over a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from toolz import identity

from benchmarks.real_models import Row, of_transformers
from benchmarks.signals import floats, ids

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
GEMMA3_12B = {
    "hidden_size": 3840,
    "intermediate_size": 15360,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "sliding_window": 1024,
    "query_pre_attn_scalar": 256,
    "vocab_size": 262208,
}
MIXTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
QWEN3_30B = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {"n_routed_experts": 32, "first_k_dense_replace": 1, "vocab_size": 129280}
QWEN3_NEXT = {
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 32,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
MAMBA2 = {
    "hidden_size": 2048,
    "num_heads": 64,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 1,
    "expand": 2,
    "chunk_size": 256,
    "vocab_size": 50288,
}
GPT2_XL = {"n_embd": 1600, "n_layer": 12, "n_head": 25}


class Step(torch.nn.Module):
    """A decoder that takes one token, and keys and values of those before it: [layers, batch, heads, tokens, channels].
    It returns logits, and the keys and values of the new token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[N, 1] -> [N, 1, vocabulary] and two tensors [layers, N, heads, 1, channels]"""
        cache = hf.DynamicCache()
        for layer, (key, value) in enumerate(zip(keys.unbind(), values.unbind(), strict=True)):
            cache.update(key, value, layer)
        places = torch.full_like(input_ids, keys.shape[3])
        logits = self.model(input_ids=input_ids, position_ids=places, past_key_values=cache, use_cache=True).logits
        added = [[each.keys[:, :, -1:], each.values[:, :, -1:]] for each in cache.layers]
        return logits, torch.stack([key for key, _ in added]), torch.stack([value for _, value in added])


class FixedRouter(torch.nn.Module):
    """A router of experts that weighs them as its own does, but always chooses the same for a token."""

    def __init__(self, router: Any, tokens: int) -> None:
        super().__init__()
        self.router = router
        self.register_buffer("chosen", torch.rand(tokens, router.num_experts).topk(router.top_k).indices)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[tokens, C] -> logits [tokens, experts], weights and experts [tokens, k]"""
        logits = self.router(hidden)[0]
        weights = logits.float().softmax(-1).gather(1, self.chosen)
        return logits, weights / weights.sum(-1, keepdim=True), self.chosen


def fixed(make: Callable[[], torch.nn.Module]) -> Callable[[], torch.nn.Module]:
    """What makes the model with `FixedRouter` s in it, for a prompt of 512."""

    def made() -> torch.nn.Module:
        model = make()
        for block in [each for each in model.modules() if hasattr(each, "experts") and hasattr(each, "gate")]:
            block.gate = FixedRouter(block.gate, 512)
        return model

    return made


def _prompt(
    name: str,
    layers: int,
    shapes: str,
    kind: str,
    tokens: int,
    fields: dict[str, Any],
    wrap: Any = identity,
    **more: Any,
) -> Row:
    make = of_transformers(f"{kind}Model", f"{kind}Config", num_hidden_layers=layers, **fields, use_cache=False)
    make, given = wrap(make), {"input_ids": ids(30000, 1, tokens)}
    return Row(name, f"{layers} {shapes}; a prompt of {tokens:,}", make, given, **more)


def _token(name: str, layers: int, shapes: str, kind: str, fields: dict[str, Any], **more: Any) -> Row:
    make = of_transformers(f"{kind}ForCausalLM", f"{kind}Config", num_hidden_layers=layers, **fields)
    cache = floats(
        layers, 1, fields["num_key_value_heads"], 1023, fields["hidden_size"] // fields["num_attention_heads"]
    )
    given = {"input_ids": ids(30000, 1, 1), "keys": cache, "values": cache}
    return Row(name, f"{layers} {shapes}; a token after 1,023", lambda: Step(make()), given, **more)


WIDE = "layers, 4,096 wide"
ROWS = (
    _prompt("llama-8b-prompt", 4, f"of 32 {WIDE}", "Llama", 2048, LLAMA_8B, small=True, heavy=4),
    _token("llama-8b-token", 8, f"of 32 {WIDE}, and the head", "Llama", LLAMA_8B, heavy=7),
    _prompt("qwen3-8b-prompt", 4, f"of 36 {WIDE}", "Qwen3", 2048, QWEN3_8B, heavy=4),
    _token("qwen3-8b-token", 4, f"of 36 {WIDE}, and the head", "Qwen3", QWEN3_8B, heavy=5),
    _prompt("gemma3-12b-prompt", 6, "of 48 layers, 3,840 wide", "Gemma3Text", 2048, GEMMA3_12B, heavy=6),
    _prompt(
        "mixtral-8x7b-fixed",
        2,
        f"of 32 {WIDE}, 8 experts, the same for a token",
        "Mixtral",
        512,
        MIXTRAL,
        fixed,
        heavy=8,
    ),
    _prompt("mixtral-8x7b", 2, f"of 32 {WIDE}, 8 experts", "Mixtral", 512, MIXTRAL, routed=True, heavy=8),
    _prompt(
        "qwen3-30b-a3b", 2, "of 48 layers, 2,048 wide, 128 experts", "Qwen3Moe", 512, QWEN3_30B, routed=True, heavy=6
    ),
    _prompt(
        "deepseek-v3",
        2,
        "of 61 layers, 7,168 wide, 32 of 256 experts",
        "DeepseekV3",
        512,
        DEEPSEEK_V3,
        routed=True,
        heavy=8,
    ),
    _prompt(
        "qwen3-next-80b",
        4,
        "of 48 layers, 2,048 wide, 32 of 512 experts",
        "Qwen3Next",
        512,
        QWEN3_NEXT,
        routed=True,
        heavy=6,
    ),
    _prompt("mamba2-1.3b", 6, "of 48 layers, 2,048 wide", "Mamba2", 512, MAMBA2, heavy=4),
    _prompt("gpt2-xl", 12, "of 48 layers, 1,600 wide", "GPT2", 1024, GPT2_XL, small=True, heavy=2),
)
