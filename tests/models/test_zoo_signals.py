"""The quickest architectures of vision, audio and time series are one engine each, no worse than eager."""

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
}


@pytest.mark.parametrize(
    "architecture",
    [each for table, names in QUICK.items() for each in zoo.architectures(table) if each.name in names],
    ids=lambda each: each.name,
)
def test_one_engine(architecture: Architecture) -> None:
    row = zoo.row(evolve(architecture, sizes=architecture.sizes[-1:]))
    assert row.get("engines") == 1 and row["fallbacks"] == [] and "wrong" not in row, row
    assert row["sizes"] == 2 and "batch" in row["dynamic"]
