"""Diffusion models at real size: UNets whole, transformers of images and videos with fewer blocks, a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.real_models import Row, of_library
from benchmarks.signals import Given, floats, ids, ones

WIDTHS = (320, 640, 1280, 1280)
SD15 = {
    "sample_size": 64,
    "block_out_channels": WIDTHS,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
    "layers_per_block": 2,
}
SDXL = {
    "sample_size": 128,
    "block_out_channels": WIDTHS[:3],
    "cross_attention_dim": 2048,
    "attention_head_dim": (5, 10, 20),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
AUTOENCODER = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "sample_size": 1024,
}
SD3 = {
    "sample_size": 128,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 4,
    "num_attention_heads": 24,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
}
FLUX = {
    "in_channels": 64,
    "num_layers": 2,
    "num_single_layers": 4,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
}
WAN = {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 2, "text_dim": 4096}
COGVIDEOX = {
    "num_attention_heads": 48,
    "attention_head_dim": 64,
    "num_layers": 2,
    "text_embed_dim": 4096,
    "sample_width": 90,
    "sample_height": 60,
    "sample_frames": 49,
    "use_rotary_positional_embeddings": False,
}
PIXART = {
    "sample_size": 128,
    "num_layers": 8,
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "in_channels": 4,
    "out_channels": 8,
    "cross_attention_dim": 1152,
    "caption_channels": 4096,
    "norm_type": "ada_norm_single",
    "patch_size": 2,
    "attention_bias": True,
    "norm_elementwise_affine": False,
    "norm_eps": 1e-6,
    "use_additional_conditions": False,
}


class WithConditions(torch.nn.Module):
    """SDXL's UNet, whose conditions beside the prompt are arguments of their own."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, text_embeds: torch.Tensor, time_ids: torch.Tensor, **inputs: torch.Tensor) -> Any:
        """What the UNet returns."""
        return self.model(added_cond_kwargs={"text_embeds": text_embeds, "time_ids": time_ids}, **inputs)


class Decoder(torch.nn.Module):
    """An autoencoder's way from latents to images."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder, self.post = model.decoder, model.post_quant_conv

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """[N, 4, H, W] -> [N, 3, 8 * H, 8 * W]"""
        images: torch.Tensor = self.decoder(self.post(latents))
        return images


def vae_decoder() -> torch.nn.Module:
    """The decoder of SDXL's autoencoder."""
    made: torch.nn.Module = _made("AutoencoderKL", Decoder, **AUTOENCODER)()
    return made


def _made(name: str, wrap: Callable[[Any], torch.nn.Module] = lambda model: model, **fields: Any) -> Any:
    make = of_library("diffusers", name, **fields)
    return lambda: wrap(make())


def _row(name: str, shapes: str, make: Any, inputs: Any, **more: Any) -> Row:
    return Row(name, shapes, make, inputs, library="diffusers", **more)


ROWS = (
    _row(
        "sdxl-unet",
        "whole, 2.6 B; latents 128², batch 2, 77 tokens",
        _made("UNet2DConditionModel", WithConditions, **SDXL),
        {
            "sample": floats(2, 4, 128, 128),
            "timestep": ids(1000),
            "encoder_hidden_states": floats(2, 77, 2048),
            "text_embeds": floats(2, 1280),
            "time_ids": ids(1024, 2, 6),
        },
        convolutions=True,
        heavy=9,
    ),
    _row(
        "sd15-unet",
        "whole, 0.86 B; latents 64², batch 2, 77 tokens",
        _made("UNet2DConditionModel", **SD15),
        {"sample": floats(2, 4, 64, 64), "timestep": ids(1000), "encoder_hidden_states": floats(2, 77, 768)},
        convolutions=True,
        heavy=6,
    ),
    _row(
        "sdxl-vae-decoder",
        "whole; latents 128² to 1,024², batch 1",
        vae_decoder,
        {"latents": floats(1, 4, 128, 128)},
        convolutions=True,
        heavy=4,
    ),
    _row(
        "sd3-medium",
        "4 of 24 blocks, 1,536 wide; 1,024², batch 2, 4,096 + 333 tokens",
        _made("SD3Transformer2DModel", **SD3),
        {
            "hidden_states": floats(2, 16, 128, 128),
            "encoder_hidden_states": floats(2, 333, 4096),
            "pooled_projections": floats(2, 2048),
            "timestep": ids(1000, 2),
        },
        heavy=3,
        small=True,
    ),
    _row(
        "flux-dev",
        "2 + 4 of 19 + 38 blocks, 3,072 wide; 1,024², 4,096 + 512 tokens",
        _made("FluxTransformer2DModel", **FLUX),
        {
            "hidden_states": floats(1, 4096, 64),
            "encoder_hidden_states": floats(1, 512, 4096),
            "pooled_projections": floats(1, 768),
            "timestep": ones(1),
            "img_ids": ids(64, 4096, 3),
            "txt_ids": Given((512, 3), "zeros"),
            "guidance": ones(1),
        },
        heavy=5,
    ),
    _row(
        "wan2.1-1.3b",
        "2 of 30 blocks, 1,536 wide; 480 by 832, 81 frames, 32,760 + 512 tokens",
        _made("WanTransformer3DModel", **WAN),
        {
            "hidden_states": floats(1, 16, 21, 60, 104),
            "timestep": ids(1000, 1),
            "encoder_hidden_states": floats(1, 512, 4096),
        },
        heavy=4,
    ),
    _row(
        "cogvideox-5b",
        "2 of 42 blocks, 3,072 wide; 480 by 720, 49 frames, 17,550 + 226 tokens",
        _made("CogVideoXTransformer3DModel", **COGVIDEOX),
        {
            "hidden_states": floats(1, 13, 16, 60, 90),
            "encoder_hidden_states": floats(1, 226, 4096),
            "timestep": ids(1000, 1),
        },
        heavy=5,
    ),
    _row(
        "pixart-sigma",
        "8 of 28 blocks, 1,152 wide; 1,024², batch 2, 4,096 tokens, 300 of the prompt",
        _made("PixArtTransformer2DModel", **PIXART),
        {
            "hidden_states": floats(2, 4, 128, 128),
            "encoder_hidden_states": floats(2, 300, 4096),
            "timestep": ids(1000, 2),
        },
        heavy=3,
        small=True,
    ),
)
