"""What small models that see are made of: towers, texts, and prompts with what is seen."""

from __future__ import annotations

from typing import Any, Final

import torch

from tests.compat.families import SMALL

IMAGE: Final = 98
"""The token of an image, or of a sound."""
TOWER: Final = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
    "num_channels": 3,
}
PATCHES: Final = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "patch_size": 4}
SECTIONS: Final = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
THREE: Final = {**SMALL, "rope_scaling": SECTIONS, "rope_parameters": SECTIONS}
SOUND: Final = {
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "max_source_positions": 12,
}
Made = tuple[str, dict[str, Any], dict[str, torch.Tensor]]
"""The class, its configuration, and what a processor gives for a prompt."""


def prompt(tokens: int, before: tuple[int, ...] = (5,), **given: torch.Tensor) -> dict[str, torch.Tensor]:
    """A prompt with so many tokens of what is seen."""
    ids = torch.tensor([[*before, *[IMAGE] * tokens, 7, 9]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **given}


def pixels(*sizes: int) -> torch.Tensor:
    """The same in each run."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0))
