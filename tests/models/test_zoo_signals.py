"""The quickest architectures of vision, audio, time series and diffusion are one engine each, no worse than eager."""

from __future__ import annotations

import pytest
from attrs import evolve

from benchmarks import zoo
from benchmarks.architectures import Architecture

QUICK = {
    "vision": ("dinov2", "regnet_x", "siglip_vision"),
    "dense": ("vitpose",),
    "detection": ("sam_vision",),
    "audio": ("hubert", "speecht5_hifigan", "whisper_encoder"),
    "multimodal": ("perceiver_text",),
    "series": ("patchtst",),
    "diffusion": ("sd_unet", "sd3", "dit", "wan", "autoencoder_kl_decoder"),
}


@pytest.mark.parametrize(
    "architecture",
    [each for table, names in QUICK.items() for each in zoo.architectures(table) if each.name in names],
    ids=lambda each: each.name,
)
def test_one_engine(architecture: Architecture) -> None:
    pytest.importorskip(architecture.library)
    row = zoo.row(evolve(architecture, sizes=architecture.sizes[-1:]))
    assert row.get("engines") == 1 and row["fallbacks"] == [] and "wrong" not in row, row
    assert row["sizes"] == 2 and "batch" in row["dynamic"]


@pytest.mark.parametrize("name", ["qwen2_5_vl_tower", "siglip2_tower", "qwen3_vl"])
def test_what_sees_images_of_several_sizes_is_one_engine(name: str) -> None:
    row = zoo.row(next(each for each in zoo.architectures("chat") if each.name == name))
    assert row.get("engines") == 1 and row["fallbacks"] == [] and "wrong" not in row, row
    assert row["sizes"] == (3 if row["dynamic"] else 1)
