"""What the vision architectures of the zoo have in common: fields of configurations, and how images vary."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers as hf
from torch.export import Dim

from benchmarks.architectures import Architecture, Made, lively

ViT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
"""Fields of a configuration that transformers over patches have."""
STAGES = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 2, 1]}
"""Fields of a configuration that networks in four stages have."""
HEADS = {"num_attention_heads": [1, 2, 2, 4]}
PATCHES = {"image_size": 32, "patch_size": 8}
THIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER_DECODER = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
"""Fields of a configuration that have an encoder and a decoder."""
FOUR = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}
THIN_4, ViT_4 = ({**fields, "num_hidden_layers": 4, **FOUR} for fields in (THIN, ViT))
STAGE_NAMES = FOUR["out_features"]
WINDOWS = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
VITDET = {
    "image_size": 32,
    "pretrain_image_size": 32,
    "patch_size": 4,
    "window_size": 4,
    "window_block_indices": [0],
    "use_relative_position_embeddings": True,
    **THIN,
}
MOBILEVIT = {
    "image_size": 64,
    "hidden_sizes": [32, 40, 48],
    "neck_hidden_sizes": [8, 16, 16, 24, 32, 40, 80],
}
ALL = ("float32", "float16", "bfloat16")

Extra = Callable[[int, int], torch.Tensor]
"""Another input by batch and the size of the image; its first dim is the batch."""


def image(
    name: str,
    model: str,
    config: str,
    size: int,
    any_size: int = 0,
    *,
    task: str = "classification",
    channels: int = 3,
    also: Mapping[str, Extra] | None = None,
    dtypes: tuple[str, ...] = ("float32",),
    **fields: Any,
) -> Architecture:
    """An architecture over images of a size; ``any_size``: of any size that is a multiple of this number."""

    def make() -> Made:
        made = configuration((config, fields))
        batch = {0: Dim("batch", min=1, max=4)}
        inputs = {"pixel_values": torch.randn(2, channels, size, size)}
        inputs |= {key: value(2, size) for key, value in (also or {}).items()}
        dims = dict.fromkeys(inputs, batch) | {"pixel_values": {**batch, **_sides(size, any_size)}}
        return lively(getattr(hf, model)(made)), inputs, dims

    return Architecture(name, task, make, _sizes(size, any_size), dtypes)


def _sides(size: int, any_size: int) -> dict[int, Any]:
    if not any_size:
        return {}
    sides = (Dim(side, min=size // any_size // 2, max=2 * size // any_size) for side in ("height", "width"))
    return dict(zip((2, 3), (side if any_size == 1 else any_size * side for side in sides), strict=True))


def _sizes(size: int, any_size: int) -> tuple[dict[str, int], ...]:
    times = f"{any_size}*" * (any_size > 1)
    tall, small = ({f"{times}height": h, f"{times}width": w} for h, w in ((2 * size, size), (size // 2, size)))
    return {"batch": 1, **small}, {"batch": 4, **tall}


def configuration(value: Any) -> Any:
    """The configuration of that name; fields may be (name, fields) of others. It may keep what it is given, and does
    not get ours: some take entries out of the dicts of their parts."""
    if isinstance(value, tuple) and len(value) == 2 and str(value[0]).endswith("Config"):
        return getattr(hf, value[0])(**{key: configuration(each) for key, each in value[1].items()})
    return copy.deepcopy(value)


def video(name: str, model: str, config: str, key: str = "pixel_values", **fields: Any) -> Architecture:
    """An architecture over four frames of 16 x 16."""

    def make() -> Made:
        made = configuration((config, {"image_size": 16, "patch_size": 8, **fields}))
        shapes = {key: {0: Dim("batch", min=1, max=4)}}
        return lively(getattr(hf, model)(made)), {key: torch.randn(2, 4, 3, 16, 16)}, shapes

    return Architecture(name, "video", make, ({"batch": 1}, {"batch": 4}))
