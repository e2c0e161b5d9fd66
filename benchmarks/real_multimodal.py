"""Models of images and text at real size, and readers of text in images."""

from __future__ import annotations

import torch
import transformers as hf

from benchmarks.real_models import Row, of_transformers
from benchmarks.signals import floats, ids

CLIP_TEXT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "projection_dim": 768}
CLIP_VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}
BLIP_L = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 384,
}
TROCR = {
    "d_model": 1024,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "cross_attention_hidden_size": 1024,
}
VIT_L = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 384,
    "patch_size": 16,
    "qkv_bias": False,
}
DONUT = {
    "image_size": [2560, 1920],
    "embed_dim": 128,
    "depths": [2, 2, 14, 2],
    "num_heads": [4, 8, 16, 32],
    "window_size": 10,
}
OWL_L_TEXT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
OWL_L_VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 840,
    "patch_size": 14,
}


def trocr() -> torch.nn.Module:
    """TrOCR, large: a vision transformer and a decoder of text."""
    decoder = hf.TrOCRForCausalLM(hf.TrOCRConfig(**TROCR, is_decoder=True, add_cross_attention=True, use_cache=False))
    encoder = hf.ViTModel(hf.ViTConfig(**VIT_L), add_pooling_layer=False)
    made: torch.nn.Module = hf.VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
    return made


ROWS = (
    Row(
        "clip-large-336",
        "whole, 0.43 B; images of 336², batch 4, texts of 77",
        of_transformers(
            "CLIPModel", "CLIPConfig", text_config=CLIP_TEXT, vision_config=CLIP_VISION, projection_dim=768
        ),
        {"input_ids": ids(49000, 4, 77), "pixel_values": floats(4, 3, 336, 336)},
        small=True,
        heavy=2,
    ),
    Row(
        "siglip-so400m",
        "its vision tower, 0.43 B; 384², batch 4",
        of_transformers("SiglipVisionModel", "SiglipVisionConfig", **SIGLIP),
        {"pixel_values": floats(4, 3, 384, 384)},
        small=True,
        heavy=2,
    ),
    Row(
        "blip-large",
        "its vision tower, 0.30 B; 384², batch 2",
        of_transformers("BlipVisionModel", "BlipVisionConfig", **BLIP_L),
        {"pixel_values": floats(2, 3, 384, 384)},
        heavy=2,
    ),
    Row(
        "trocr-large",
        "whole, 0.61 B; 384², 64 tokens, batch 2",
        trocr,
        {"pixel_values": floats(2, 3, 384, 384), "decoder_input_ids": ids(50000, 2, 64)},
        heavy=3,
    ),
    Row(
        "donut-base-encoder",
        "whole; 2,560 by 1,920, batch 1",
        of_transformers("DonutSwinModel", "DonutSwinConfig", **DONUT),
        {"pixel_values": floats(1, 3, 2560, 1920)},
        heavy=4,
    ),
    Row(
        "owlvit-large",
        "whole, 0.43 B; 840², 8 texts of 16",
        of_transformers(
            "OwlViTForObjectDetection",
            "OwlViTConfig",
            text_config=OWL_L_TEXT,
            vision_config=OWL_L_VISION,
            projection_dim=768,
        ),
        {"input_ids": ids(49000, 8, 16), "pixel_values": floats(1, 3, 840, 840)},
        heavy=3,
    ),
)
