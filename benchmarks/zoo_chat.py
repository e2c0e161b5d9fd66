"""Language models that see images of several sizes, and their vision towers, small, with random weights.

A tower takes the patches of all images in one row, and how many each has. Python reads that, so it is a
`pipeline.Constant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers as hf
from torch.export import Dim

import pipeline
from benchmarks.architectures import Architecture, Made, lively

GRID = [[1, 4, 4], [1, 4, 8]]
"""Two images: frames, rows and columns of patches."""
PATCHES = 48
MERGED = 12
"""Four patches each are one token."""
TOWER = {
    **dict.fromkeys(("hidden_size", "embed_dim", "out_hidden_size"), 32),
    **dict.fromkeys(("num_heads", "num_attention_heads"), 2),
    **dict.fromkeys(("depth", "num_hidden_layers"), 2),
    "intermediate_size": 48,
    "patch_size": 4,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0, 1],
    "num_position_embeddings": 64,
    "num_patches": 64,
}
"""Fields of the configurations of towers, of which each has some."""
TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "use_cache": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
}
IMAGE = 98


def with_fields(config: Any, fields: Mapping[str, Any]) -> Any:
    """The configuration with those of the fields that it has."""
    for name, value in fields.items():
        if hasattr(config, name):
            setattr(config, name, value)
    return config


def tower(name: str, config: str, first: str = "hidden_states") -> Architecture:
    """The vision tower of a configuration."""

    def make() -> Made:
        made = with_fields(getattr(hf, config)(), TOWER)
        module = lively(hf.AutoModel.from_config(made))
        channels = next(getattr(made, n) for n in ("in_channels", "in_chans", "num_channels") if hasattr(made, n))
        width = made.patch_size**2 * channels * getattr(made, "temporal_patch_size", 1)
        return module, {first: torch.randn(PATCHES, width), "grid_thw": pipeline.Constant(GRID)}, None

    return Architecture(name, "vision tower", make, ())


def siglip2() -> Made:
    """Images of several sizes, one a row, with empty patches behind."""
    config = with_fields(hf.Siglip2VisionConfig(), TOWER)
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 12:] = 0
    sizes = pipeline.Constant([[4, 4], [3, 4]])
    given = {"pixel_values": torch.randn(2, 16, 48), "pixel_attention_mask": mask, "spatial_shapes": sizes}
    return lively(hf.Siglip2VisionModel(config)), given, None


class WithImages(torch.nn.Module):
    """A model whose text begins with the places of image features."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> Any:
        """[1, S], the patches of all images and their grids -> logits [1, images + S, V]"""
        ids = torch.cat([input_ids.new_full((1, MERGED), IMAGE), input_ids], 1)
        positions = torch.arange(ids.shape[1], device=ids.device).expand(3, 1, -1)
        images = {"pixel_values": pixel_values, "image_grid_thw": image_grid_thw}
        return self.model(input_ids=ids, position_ids=positions, **images).logits


def chat(name: str, model: str, config: str) -> Architecture:
    """A whole language model with its tower."""

    def make() -> Made:
        made = getattr(hf, config)()
        vision, text = with_fields(made.vision_config, TOWER), with_fields(made.text_config, TEXT)
        text.layer_types = ["full_attention"] * 2
        made.image_token_id, made.video_token_id, made.vision_start_token_id = IMAGE, IMAGE - 1, IMAGE - 2
        module = WithImages(lively(getattr(hf, model)(made)).eval())
        patches = torch.randn(PATCHES, vision.patch_size**2 * 3 * vision.temporal_patch_size)
        given = {"input_ids": torch.randint(3, 90, (1, 12)), "pixel_values": patches}
        shapes = {"input_ids": {1: Dim("sequence", min=2, max=32)}, "pixel_values": None, "image_grid_thw": None}
        return module, {**given, "image_grid_thw": pipeline.Constant(GRID)}, shapes

    return Architecture(name, "chat", make, ({"sequence": 2}, {"sequence": 32}))


ARCHITECTURES = (
    tower("qwen2_5_vl_tower", "Qwen2_5_VLVisionConfig"),
    tower("qwen3_vl_tower", "Qwen3VLVisionConfig"),
    tower("qwen3_5_tower", "Qwen3_5VisionConfig"),
    tower("glm4v_tower", "Glm4vVisionConfig"),
    tower("glm_ocr_tower", "GlmOcrVisionConfig"),
    Architecture("siglip2_tower", "vision tower", siglip2, ()),
    chat("qwen2_vl", "Qwen2VLForConditionalGeneration", "Qwen2VLConfig"),
    chat("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig"),
    chat("qwen3_vl", "Qwen3VLForConditionalGeneration", "Qwen3VLConfig"),
    chat("glm4v", "Glm4vForConditionalGeneration", "Glm4vConfig"),
)
