"""Architectures of diffusers, small, with random weights: videos and sound, and what packs and unpacks latents."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.architectures import Architecture
from benchmarks.signals import Given, diffusion, floats, ids, ones

STEP = ids(1000, "batch")
TEXT = floats("batch", "sequence", 16)
VIDEO = floats("batch", 4, "pictures", "2*height", "2*width")
SHOWN = {"hidden_states": VIDEO, "timestep": STEP, "encoder_hidden_states": TEXT}
MASK = {"encoder_attention_mask": ones("batch", "sequence")}
DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 4, "num_layers": 2}
WAN = {**DIT, "attention_head_dim": 12, "text_dim": 16, "freq_dim": 16, "ffn_dim": 32, "rope_max_seq_len": 32}
COGVIDEOX = {
    **DIT,
    "attention_head_dim": 16,
    "time_embed_dim": 8,
    "text_embed_dim": 16,
    "sample_width": 12,
    "sample_height": 8,
    "sample_frames": 9,
    "max_text_seq_length": 7,
}
SCENE = {
    "hidden_states": floats("batch", 3, 4, 8, 12),
    "timestep": STEP,
    "encoder_hidden_states": floats("batch", 7, 16),
}
KL = {
    "block_out_channels": (8, 16),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "norm_num_groups": 4,
    "latent_channels": 4,
}
TWO_UP = {"up_block_types": ("UpDecoderBlock2D",) * 2}
PIXELS = floats("batch", 3, "2*height", "2*width")
LATENT = {"latents": floats("batch", 4, "height", "width")}


class Decoder(torch.nn.Module):
    """What makes images, videos or sound of latents."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, latents: torch.Tensor) -> Any:
        """The sample that an autoencoder decodes."""
        return self.model.decode(latents, **self.options).sample


class Encoder(torch.nn.Module):
    """What makes latents of images: the mean of their distribution."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: torch.Tensor) -> Any:
        """The mode that an autoencoder encodes."""
        return self.model.encode(sample).latent_dist.mode()


LATENT_ARCHITECTURES: tuple[Architecture, ...] = (
    diffusion(
        "svd_unet",
        "video",
        "UNetSpatioTemporalConditionModel",
        {
            "sample": floats("batch", "pictures", 8, "2*height", "2*width"),
            "timestep": Given((), 1000),
            "encoder_hidden_states": floats("batch", 1, 16),
            "added_time_ids": floats("batch", 3),
        },
        block_out_channels=(32, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        num_attention_heads=(2, 2),
        cross_attention_dim=16,
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=24,
    ),
    diffusion(
        "animatediff_unet",
        "video",
        "UNetMotionModel",
        {
            "sample": floats(2, 4, "pictures", "2*height", "2*width"),
            "timestep": Given((), 1000),
            "encoder_hidden_states": floats("2*pictures", "sequence", 16),
        },
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
        up_block_types=("UpBlockMotion", "CrossAttnUpBlockMotion"),
        cross_attention_dim=16,
        num_attention_heads=2,
        motion_num_attention_heads=2,
        motion_max_seq_length=8,
    ),
    diffusion("wan", "video", "WanTransformer3DModel", SHOWN, **WAN),
    diffusion(
        "wan_image",
        "video",
        "WanTransformer3DModel",
        {**SHOWN, "encoder_hidden_states_image": floats("batch", 5, 16)},
        image_dim=16,
        added_kv_proj_dim=24,
        **WAN,
    ),
    diffusion("cogvideox", "video", "CogVideoXTransformer3DModel", SCENE, **COGVIDEOX),
    diffusion(
        "cogvideox_rotary",
        "video",
        "CogVideoXTransformer3DModel",
        {**SCENE, "image_rotary_emb": (floats(72, 16), floats(72, 16))},
        use_rotary_positional_embeddings=True,
        **COGVIDEOX,
    ),
    diffusion(
        "ltx_video",
        "video",
        "LTXVideoTransformer3DModel",
        {
            "hidden_states": floats("batch", "tokens", 4),
            "encoder_hidden_states": TEXT,
            "timestep": STEP,
            "video_coords": floats("batch", 3, "tokens"),
            **MASK,
        },
        cross_attention_dim=16,
        caption_channels=16,
        **DIT,
    ),
    diffusion(
        "hunyuan_video",
        "video",
        "HunyuanVideoTransformer3DModel",
        {**SHOWN, **MASK, "pooled_projections": floats("batch", 8), "guidance": floats("batch")},
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 4),
        **{**DIT, "num_layers": 1, "attention_head_dim": 10},
    ),
    diffusion(
        "mochi",
        "video",
        "MochiTransformer3DModel",
        {
            "hidden_states": floats(2, 4, "pictures", 8, 12),
            "encoder_hidden_states": floats(2, "sequence", 16),
            "encoder_attention_mask": ones(2, "sequence"),
            "timestep": floats(2),
        },
        pooled_projection_dim=16,
        text_embed_dim=16,
        time_embed_dim=4,
        max_sequence_length=16,
        **DIT,
    ),
    diffusion(
        "cosmos",
        "video",
        "CosmosTransformer3DModel",
        SHOWN,
        constants={"fps": 30},
        text_embed_dim=16,
        adaln_lora_dim=4,
        max_size=(8, 32, 32),
        concat_padding_mask=False,
        **{**DIT, "attention_head_dim": 12},
    ),
    diffusion(
        "stable_audio",
        "sound",
        "StableAudioDiTModel",
        {
            "hidden_states": floats("batch", 4, "tokens"),
            "timestep": floats("batch"),
            "encoder_hidden_states": TEXT,
            "global_hidden_states": floats("batch", 1, 8),
            "rotary_embedding": (floats("tokens + 1", 4), floats("tokens + 1", 4)),
        },
        num_key_value_attention_heads=1,
        cross_attention_dim=16,
        cross_attention_input_dim=16,
        time_proj_dim=8,
        global_states_input_dim=8,
        **DIT,
    ),
    diffusion("autoencoder_kl", "autoencoder", "AutoencoderKL", {"sample": PIXELS}, **KL, **TWO_UP),
    diffusion(
        "autoencoder_kl_encoder", "encoder of images", "AutoencoderKL", {"sample": PIXELS}, wrap=Encoder, **KL, **TWO_UP
    ),
    diffusion(
        "autoencoder_kl_decoder",
        "decoder of images",
        "AutoencoderKL",
        LATENT,
        wrap=Decoder,
        dtypes=("float32", "float16"),
        **KL,
        **TWO_UP,
    ),
    diffusion(
        "autoencoder_tiny",
        "autoencoder",
        "AutoencoderTiny",
        {"sample": floats("batch", 3, "8*height", "8*width")},
        encoder_block_out_channels=(8,) * 4,
        decoder_block_out_channels=(8,) * 4,
        num_encoder_blocks=(1, 1, 1, 1),
        num_decoder_blocks=(1, 1, 1, 1),
    ),
    diffusion(
        "autoencoder_dc",
        "autoencoder",
        "AutoencoderDC",
        {"sample": floats("batch", 3, "4*height", "4*width")},
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8, 16),
        decoder_block_out_channels=(8, 8, 16),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        encoder_qkv_multiscales=((), (), (5,)),
        decoder_qkv_multiscales=((), (), (5,)),
    ),
    diffusion("vq", "autoencoder", "VQModel", {"sample": PIXELS}, num_vq_embeddings=16, **KL, **TWO_UP),
    diffusion(
        "svd_decoder",
        "decoder of videos",
        "AutoencoderKLTemporalDecoder",
        {"latents": floats("3*batch", 4, "height", "width")},
        wrap=lambda model: Decoder(model, num_frames=3),
        block_out_channels=(32, 32),
        down_block_types=KL["down_block_types"],
    ),
    diffusion(
        "wan_decoder",
        "decoder of videos",
        "AutoencoderKLWan",
        {"latents": floats("batch", 4, 3, "height", "width")},
        wrap=Decoder,
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[True],
    ),
    diffusion(
        "ltx_video_decoder",
        "decoder of videos",
        "AutoencoderKLLTXVideo",
        {"latents": floats("batch", 4, "pictures", "height", "width")},
        wrap=Decoder,
        latent_channels=4,
        block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        down_block_types=("LTXVideoDownBlock3D",) * 2,
        layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, False),
        decoder_spatio_temporal_scaling=(True, False),
        decoder_inject_noise=(False,) * 3,
        upsample_residual=(False,) * 2,
        upsample_factor=(1, 1),
        downsample_type=("conv",) * 2,
    ),
    diffusion(
        "oobleck",
        "codec",
        "AutoencoderOobleck",
        {"sample": floats("batch", 2, "8*tokens")},
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4],
        channel_multiples=[1, 2],
        decoder_channels=8,
        decoder_input_channels=4,
    ),
)
