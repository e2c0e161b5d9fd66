"""More small models that see: those that give their language model more than embeddings, or other positions. All their
experts are chosen, so that rounding decides nothing."""

from __future__ import annotations

from typing import Any

import torch

from tests.compat.families import SMALL
from tests.compat.seen import IMAGE, PATCHES, SOUND, THREE, Made, pixels, prompt

LAYERS = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}


def _of_kinds(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**given, "mm_token_type_ids": (given["input_ids"] == IMAGE).long()}


def _gemma4(**options: Any) -> Made:
    tower = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16, "patch_size": 4}
    tower |= {"num_attention_heads": 2, "num_key_value_heads": 2, "pooling_kernel_size": 2}
    tower |= {"position_embedding_size": 16}
    text = {**SMALL, **LAYERS, "global_head_dim": 16, "vocab_size_per_layer_input": 99, "model_type": "gemma4_text"}
    own = {"text_config": {**text, **options}, "vision_config": {**tower, "model_type": "gemma4_vision"}}
    own |= {"audio_config": None, "image_token_id": IMAGE, "video_token_id": 97, "audio_token_id": 95}
    own |= {"boi_token_id": 94, "eoi_token_id": 93, "boa_token_id": 92, "eoa_token_index": 91}
    places = torch.tensor([[[x, y] for y in range(4) for x in range(4)]])
    given = prompt(4, (5, 94), pixel_values=pixels(1, 16, 48), image_position_ids=places)
    return "Gemma4ForConditionalGeneration", own, _of_kinds(given)


def gemma4() -> Made:
    """E2B and E4B: each layer takes something beside embeddings, and some share keys and values."""
    return _gemma4(hidden_size_per_layer_input=8, num_kv_shared_layers=2)


def gemma4_large() -> Made:
    """31B and 26B: images attend to all of themselves in layers with a window alone; experts."""
    experts = {"enable_moe_block": True, "num_experts": 2, "top_k_experts": 2, "moe_intermediate_size": 16}
    keys = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    return _gemma4(hidden_size_per_layer_input=0, use_bidirectional_attention="vision", **keys, **experts)


def gemma3n() -> Made:
    """Ids above some have embeddings of their own. Its tower, which is timm's, is a convolution here."""
    from transformers import AutoModel, PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput
    from transformers.models.gemma3n.configuration_gemma3n import Gemma3nVisionConfig

    class Convolution(PreTrainedModel):
        config_class = Gemma3nVisionConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.one = torch.nn.Conv2d(3, 4 * config.hidden_size, 7, 7)
            self.two = torch.nn.Conv2d(4 * config.hidden_size, config.hidden_size, 2, 2)
            self.post_init()

        def forward(self, pixel_values: torch.Tensor, **_: Any) -> Any:
            return BaseModelOutput(last_hidden_state=self.two(torch.tanh(self.one(pixel_values))))

    AutoModel.register(Gemma3nVisionConfig, Convolution, exist_ok=True)
    text = {**SMALL, **LAYERS, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 90, "laurel_rank": 4}
    text |= {"hidden_size_per_layer_input": 8, "altup_num_inputs": 2}
    text |= {"activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]}
    seen = {"model_type": "gemma3n_vision", "hidden_size": 32, "vocab_size": 5, "vocab_offset": 90}
    heard = {"hidden_size": 32, "vocab_size": 4, "vocab_offset": 95, "input_feat_size": 16, "conf_num_hidden_layers": 2}
    heard |= {"conf_num_attention_heads": 4, "sscp_conv_channel_size": (8, 4), "conf_attention_chunk_size": 4}
    heard |= {"conf_attention_context_left": 5, "model_type": "gemma3n_audio"}
    own = {"text_config": {**text, "model_type": "gemma3n_text"}, "vision_config": seen, "audio_config": heard}
    own |= {"image_token_id": 93, "audio_token_id": 97, "boi_token_id": 91, "eoi_token_id": 92, "boa_token_id": 95}
    ids = torch.tensor([[5, 91, 93, 93, 93, 93, 92, 7, 9]])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels(1, 3, 28, 28)}
    given["token_type_ids"] = (ids == 93).long()
    own |= {"eoa_token_id": 96, "vision_soft_tokens_per_image": 4, "audio_soft_tokens_per_image": 4}
    return "Gemma3nForConditionalGeneration", own, given


def exaone4_5() -> Made:
    """Its positions count hidden tokens."""
    tower = {**PATCHES, "out_hidden_size": 32, "window_size": 8, "fullatt_block_indexes": [1], "num_key_value_heads": 1}
    text = {**SMALL, "model_type": "exaone4", "sliding_window": None, "layer_types": ["full_attention"] * 2}
    own = {"text_config": text, "vision_config": tower, "image_token_id": IMAGE, "video_token_id": 97}
    given = prompt(4, pixel_values=pixels(16, 96), image_grid_thw=torch.tensor([[1, 4, 4]]))
    return "Exaone4_5_ForConditionalGeneration", own, given


def qwen3_omni() -> Made:
    """Its positions are floats."""
    tower = {**PATCHES, "out_hidden_size": 32, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    sound = {**SOUND, "n_window": 50, "n_window_infer": 100, "max_source_positions": 20, "output_dim": 32}
    sound |= {"downsample_hidden_size": 8, "conv_chunksize": 4}
    experts = {"num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    own = {"text_config": {**THREE, **experts, "model_type": "qwen3_omni_moe_text"}, "vision_config": tower}
    own |= {"audio_config": sound, "image_token_id": IMAGE, "video_token_id": 97, "audio_token_id": 95}
    own |= {"audio_start_token_id": 94, "vision_start_token_id": 96}
    given = prompt(4, (5, 96), pixel_values=pixels(16, 96), image_grid_thw=torch.tensor([[1, 4, 4]]))
    return "Qwen3OmniMoeThinkerForConditionalGeneration", own, given


MORE = (gemma4, gemma4_large, gemma3n, exaone4_5, qwen3_omni)
