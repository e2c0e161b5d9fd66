"""Small pipelines of diffusers with random weights, and the images that they make."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from torch.utils._pytree import tree_map, tree_map_only

SMALL = {"block_out_channels": (4, 8), "latent_channels": 4, "norm_num_groups": 2}
BLOCKS = {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}


def stable_diffusion() -> tuple[Any, dict[str, Any]]:
    """A UNet with cross attention: Stable Diffusion 1.5."""
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        sample_size=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=2,
    )
    vae, scheduler = diffusers.AutoencoderKL(**SMALL, **BLOCKS), diffusers.DDIMScheduler()
    parts = dict.fromkeys(("text_encoder", "tokenizer", "safety_checker", "feature_extractor"))
    options = {"vae": vae.eval(), "unet": unet.eval(), "scheduler": scheduler, "requires_safety_checker": False}
    text = {"prompt_embeds": torch.randn(1, 7, 32), "negative_prompt_embeds": torch.randn(1, 7, 32)}
    return diffusers.StableDiffusionPipeline(**options, **parts), text


def stable_diffusion_3() -> tuple[Any, dict[str, Any]]:
    """A transformer over images and text: Stable Diffusion 3."""
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=1,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        out_channels=4,
    )
    vae = diffusers.AutoencoderKL(**SMALL, **BLOCKS, shift_factor=0.06, scaling_factor=1.5)
    parts = dict.fromkeys(f"{kind}{n}" for kind in ("text_encoder", "tokenizer") for n in ("", "_2", "_3"))
    options = {"vae": vae.eval(), "transformer": transformer.eval()}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    text = {f"{kind}prompt_embeds": torch.randn(1, 7, 32) for kind in ("", "negative_")}
    pooled = {f"{kind}pooled_prompt_embeds": torch.randn(1, 16) for kind in ("", "negative_")}
    return diffusers.StableDiffusion3Pipeline(**options, scheduler=scheduler, **parts), {**text, **pooled}


def flux() -> tuple[Any, dict[str, Any]]:
    """A transformer with rotary positions in float64, which follow from inputs: Flux."""
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        axes_dims_rope=[4, 4, 8],
    )
    sizes = {"latent_channels": 1, "block_out_channels": (4,), "norm_num_groups": 1}
    convolutions = {"use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.06, "scaling_factor": 1.5}
    vae, scheduler = diffusers.AutoencoderKL(**sizes, **convolutions), diffusers.FlowMatchEulerDiscreteScheduler()
    parts = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    options = {"vae": vae.eval(), "transformer": transformer.eval(), "scheduler": scheduler}
    text = {"prompt_embeds": torch.randn(1, 7, 32), "pooled_prompt_embeds": torch.randn(1, 16)}
    return diffusers.FluxPipeline(**options, **parts), {**text, "max_sequence_length": 7}


MADE = {"stable diffusion 3": stable_diffusion_3, "stable diffusion": stable_diffusion, "flux": flux}


class Images:
    """A pipeline, and the images that it makes of noise that is the same each time, in every dtype."""

    def __init__(self, which: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.pipe, self.text = MADE[which]()
        self.pipe.set_progress_bar_config(disable=True)
        self.part = "unet" if hasattr(self.pipe, "unet") else "transformer"
        self.pipe.to(device, dtype)
        self.text = tree_map_only(torch.Tensor, lambda value: value.to(device, dtype), self.text)
        self._draw, self.pipe.prepare_latents = self.pipe.prepare_latents, self._noise

    @property
    def denoiser(self) -> Any:
        """Its largest part."""
        return getattr(self.pipe, self.part)

    def __call__(self, height: int, width: int, steps: int = 2) -> torch.Tensor:
        options = {"height": height, "width": width, "num_inference_steps": steps, "output_type": "pt"}
        images: torch.Tensor = self.pipe(**self.text, **options, generator=torch.Generator().manual_seed(0)).images
        return images

    def _noise(self, batch: int, channels: int, height: int, width: int, dtype: torch.dtype, *others: Any) -> Any:
        drawn = self._draw(batch, channels, height, width, torch.float32, *others)
        return tree_map(lambda value: value.to(dtype), drawn)
