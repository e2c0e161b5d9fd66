"""Architectures of diffusers, small, with random weights: what takes noise from images."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.architectures import Architecture, by_example
from benchmarks.signals import Given, diffusion, floats, ids, ones
from benchmarks.zoo_latents import LATENT_ARCHITECTURES
from pipeline import Constant

STEP = ids(1000, "batch")
IMAGE = floats("batch", 4, "2*height", "2*width")
TEXT = floats("batch", "sequence", 16)
POOLED = floats("batch", 16)
ONE_STEP = {"sample": IMAGE, "timestep": Given((), 1000)}
"""A step that is the same for the whole batch, as the pipelines have it."""
PROMPTED = {**ONE_STEP, "encoder_hidden_states": TEXT}
LATENT = {"hidden_states": IMAGE, "timestep": STEP, "encoder_hidden_states": TEXT}
UNET = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
CROSS = {
    **UNET,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 2,
}
SD = {**CROSS, "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
XL = {
    **CROSS,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 64,
}
DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2}
JOINT = {**DIT, "sample_size": 16, "joint_attention_dim": 16, "caption_projection_dim": 16, "out_channels": 4}
SD3 = {**JOINT, "pooled_projection_dim": 16, "pos_embed_max_size": 24}
FLUX = {
    **DIT,
    "attention_head_dim": 16,
    "num_layers": 1,
    "num_single_layers": 1,
    "joint_attention_dim": 16,
    "axes_dims_rope": (4, 6, 6),
}
PACKED = {
    "hidden_states": floats("batch", "tokens", 4),
    "encoder_hidden_states": TEXT,
    "timestep": floats("batch"),
    "img_ids": ids(16, "tokens", 3),
    "txt_ids": Given(("sequence", 3), "zeros"),
}
"""Patches of latents in a row, and where they lie."""


class WithoutImages(torch.nn.Module):
    """A model that is given text alone, where it could have images too."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> Any:
        """What the model makes of a prompt without images."""
        return self.model(input_img_latents=[], input_image_sizes={}, attention_mask=None, **inputs)


ARCHITECTURES: tuple[Architecture, ...] = (
    diffusion("sd_unet", "image", "UNet2DConditionModel", PROMPTED, dtypes=("float32", "float16"), **SD),
    diffusion(
        "sdxl_unet",
        "image",
        "UNet2DConditionModel",
        {**PROMPTED, "added_cond_kwargs": {"text_embeds": POOLED, "time_ids": floats("batch", 6)}},
        **XL,
    ),
    diffusion(
        "sd_unet_controlled",
        "image",
        "UNet2DConditionModel",
        {
            **PROMPTED,
            "down_block_additional_residuals": (
                floats("batch", 8, "2*height", "2*width"),
                floats("batch", 8, "2*height", "2*width"),
                floats("batch", 8, "height", "width"),
                floats("batch", 16, "height", "width"),
            ),
            "mid_block_additional_residual": floats("batch", 16, "height", "width"),
        },
        **SD,
    ),
    diffusion(
        "controlnet",
        "control",
        "ControlNetModel",
        {**PROMPTED, "controlnet_cond": floats("batch", 3, "16*height", "16*width")},
        conditioning_embedding_out_channels=(4, 8, 8, 16),
        **CROSS,
    ),
    diffusion(
        "t2i_adapter",
        "control",
        "T2IAdapter",
        {"x": floats("batch", 3, "16*height", "16*width")},
        channels=[8, 16],
        num_res_blocks=1,
    ),
    diffusion(
        "ddpm_unet",
        "image",
        "UNet2DModel",
        ONE_STEP,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        **UNET,
    ),
    diffusion(
        "stable_cascade_unet",
        "image",
        "StableCascadeUNet",
        {
            "sample": IMAGE,
            "timestep_ratio": floats("batch"),
            "clip_text_pooled": floats("batch", 1, 16),
            "clip_text": TEXT,
            "clip_img": floats("batch", 1, 16),
        },
        in_channels=4,
        out_channels=4,
        timestep_ratio_embedding_dim=8,
        conditioning_dim=16,
        block_out_channels=(16, 16),
        num_attention_heads=(2, 2),
        down_num_layers_per_block=(1, 1),
        up_num_layers_per_block=(1, 1),
        clip_text_in_channels=16,
        clip_text_pooled_in_channels=16,
        clip_image_in_channels=16,
        switch_level=(False,),
    ),
    diffusion(
        "sd3",
        "image",
        "SD3Transformer2DModel",
        {**LATENT, "pooled_projections": POOLED},
        dtypes=("float32", "bfloat16"),
        **SD3,
    ),
    diffusion(
        "sd3_5",
        "image",
        "SD3Transformer2DModel",
        {**LATENT, "pooled_projections": POOLED},
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
        **SD3,
    ),
    diffusion(
        "flux",
        "image",
        "FluxTransformer2DModel",
        {**PACKED, "pooled_projections": POOLED, "guidance": floats("batch")},
        pooled_projection_dim=16,
        guidance_embeds=True,
        **FLUX,
    ),
    diffusion(
        "flux2",
        "image",
        "Flux2Transformer2DModel",
        {
            **PACKED,
            "img_ids": ids(16, "batch", "tokens", 4),
            "txt_ids": ids(16, "batch", "sequence", 4),
            "guidance": floats("batch"),
        },
        timestep_guidance_channels=16,
        **{**FLUX, "axes_dims_rope": (4, 4, 4, 4)},
    ),
    diffusion(
        "chroma",
        "image",
        "ChromaTransformer2DModel",
        PACKED,
        approximator_num_channels=8,
        approximator_hidden_dim=16,
        approximator_layers=1,
        **FLUX,
    ),
    diffusion(
        "qwen_image",
        "image",
        "QwenImageTransformer2DModel",
        {
            "hidden_states": floats("batch", 24, 16),
            "encoder_hidden_states": TEXT,
            "encoder_hidden_states_mask": ones("batch", "sequence"),
            "timestep": floats("batch"),
        },
        constants={"img_shapes": [(1, 4, 6)]},
        in_channels=16,
        out_channels=4,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=16,
        joint_attention_dim=16,
        axes_dims_rope=(4, 6, 6),
    ),
    diffusion(
        "pixart",
        "image",
        "PixArtTransformer2DModel",
        {
            **LATENT,
            "encoder_hidden_states": floats("batch", "sequence", 24),
            "encoder_attention_mask": ones("batch", "sequence"),
        },
        sample_size=64,
        cross_attention_dim=16,
        caption_channels=24,
        use_additional_conditions=False,
        **DIT,
    ),
    diffusion(
        "sana",
        "image",
        "SanaTransformer2DModel",
        {
            **LATENT,
            "hidden_states": floats("batch", 4, "height", "width"),
            "encoder_attention_mask": ones("batch", "sequence"),
        },
        out_channels=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=16,
        sample_size=8,
        **DIT,
    ),
    diffusion(
        "hunyuan_dit",
        "image",
        "HunyuanDiT2DModel",
        {
            "hidden_states": floats("batch", 4, 8, 12),
            "timestep": floats("batch"),
            "encoder_hidden_states": floats("batch", 7, 16),
            "text_embedding_mask": ones("batch", 7),
            "encoder_hidden_states_t5": floats("batch", 9, 24),
            "text_embedding_mask_t5": ones("batch", 9),
            "image_meta_size": floats("batch", 6),
            "style": Given(("batch",), "zeros"),
            "image_rotary_emb": (floats(24, 8), floats(24, 8)),
        },
        patch_size=2,
        sample_size=8,
        hidden_size=16,
        cross_attention_dim=16,
        cross_attention_dim_t5=24,
        pooled_projection_dim=16,
        text_len=7,
        text_len_t5=9,
        **DIT,
    ),
    diffusion(
        "auraflow",
        "image",
        "AuraFlowTransformer2DModel",
        {**LATENT, "timestep": floats("batch")},
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        pos_embed_max_size=144,
        **{key: value for key, value in JOINT.items() if key != "num_layers"},
    ),
    diffusion(
        "lumina2",
        "image",
        "Lumina2Transformer2DModel",
        {
            "hidden_states": floats(2, 4, "2*height", "2*width"),
            "timestep": floats(2),
            "encoder_hidden_states": floats(2, 12, 16),
        },
        constants={"encoder_attention_mask": Constant(torch.tensor([12, 12])[:, None] > torch.arange(12))},
        in_channels=4,
        hidden_size=24,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=8,
        axes_dim_rope=(4, 4, 4),
        axes_lens=(64, 16, 16),
        cap_feat_dim=16,
    ),
    diffusion(
        "z_image",
        "image",
        "ZImageTransformer2DModel",
        {
            "x": [floats(4, 1, 8, 12)] * 2,
            "t": floats(2),
            "cap_feats": [floats(12, 16)] * 2,
        },
        in_channels=4,
        dim=24,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[4, 4, 4],
        axes_lens=[128, 16, 16],
    ),
    diffusion(
        "cogview4",
        "image",
        "CogView4Transformer2DModel",
        {**LATENT, **{name: floats("batch", 2) for name in ("original_size", "target_size", "crop_coords")}},
        out_channels=4,
        text_embed_dim=16,
        time_embed_dim=8,
        condition_dim=4,
        rope_axes_dim=(4, 4),
        **DIT,
    ),
    diffusion(
        "dit",
        "image",
        "DiTTransformer2DModel",
        {"hidden_states": floats("batch", 4, 8, 8), "timestep": STEP, "class_labels": ids(10, "batch")},
        sample_size=8,
        num_embeds_ada_norm=10,
        **DIT,
    ),
    by_example(
        diffusion(
            "omnigen",
            "image",
            "OmniGenTransformer2DModel",
            {
                "hidden_states": floats("batch", 4, 8, 8),
                "timestep": floats("batch"),
                "input_ids": ids(50, "batch", 7),
                "position_ids": Given(("batch", 24), "order"),
            },
            wrap=WithoutImages,
            hidden_size=16,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=32,
            num_layers=2,
            pad_token_id=0,
            vocab_size=50,
            pos_embed_max_size=16,
            time_step_dim=16,
            rope_scaling={"long_factor": [1.0, 1.1, 1.2, 1.3], "short_factor": [1.0, 1.0, 1.1, 1.1]},
        )
    ),
    diffusion(
        "prior_transformer",
        "prior",
        "PriorTransformer",
        {
            "hidden_states": floats("batch", 16),
            "timestep": Given((), 1000),
            "proj_embedding": POOLED,
            "encoder_hidden_states": floats("batch", 7, 16),
            "attention_mask": ones("batch", 7),
        },
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        embedding_dim=16,
        num_embeddings=7,
    ),
    *LATENT_ARCHITECTURES,
)
