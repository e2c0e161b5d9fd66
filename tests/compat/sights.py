"""Small models of transformers that see or hear beside their text, with random weights, and a prompt for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import torch

from tests.compat.families import SMALL
from tests.compat.more_sights import MORE
from tests.compat.seen import IMAGE, PATCHES, SOUND, THREE, TOWER, Made, pixels, prompt


def llava() -> Made:
    tower = {**TOWER, "model_type": "clip_vision_model", "projection_dim": 16}
    own = {"vision_config": tower, "text_config": {**SMALL, "model_type": "llama"}, "image_token_index": IMAGE}
    return (
        "LlavaForConditionalGeneration",
        {**own, "vision_feature_layer": -1},
        prompt(4, pixel_values=pixels(1, 3, 28, 28)),
    )


def llava_next() -> Made:
    _, own, _ = llava()
    given = {"pixel_values": pixels(1, 3, 3, 28, 28), "image_sizes": torch.tensor([[28, 56]])}
    return (
        "LlavaNextForConditionalGeneration",
        {**own, "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]},
        prompt(14, **given),
    )


def mistral3() -> Made:
    tower = {**TOWER, "model_type": "pixtral", "head_dim": 8, "patch_size": 7}
    text = {**SMALL, "model_type": "mistral", "sliding_window": None}
    own = {"vision_config": tower, "text_config": text, "image_token_index": IMAGE, "vision_feature_layer": -1}
    given = {"pixel_values": pixels(1, 3, 28, 28), "image_sizes": torch.tensor([[28, 28]])}
    return "Mistral3ForConditionalGeneration", own, prompt(4, **given)


def smolvlm() -> Made:
    own = {"text_config": {**SMALL, "model_type": "llama"}, "image_token_id": IMAGE, "scale_factor": 2}
    given = {
        "pixel_values": pixels(1, 1, 3, 28, 28),
        "pixel_attention_mask": torch.ones(1, 1, 28, 28, dtype=torch.bool),
    }
    return "SmolVLMForConditionalGeneration", {**own, "vision_config": dict(TOWER)}, prompt(1, **given)


def internvl() -> Made:
    tower = {**TOWER, "image_size": [28, 28], "patch_size": [14, 14]}
    own = {"text_config": {**SMALL, "model_type": "qwen2"}, "image_token_id": IMAGE, "downsample_ratio": 0.5}
    return (
        "InternVLForConditionalGeneration",
        {**own, "vision_config": tower},
        prompt(1, pixel_values=pixels(1, 3, 28, 28)),
    )


def gemma3() -> Made:
    window = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    tower = {**TOWER, "model_type": "siglip_vision_model"}
    own = {"vision_config": tower, "text_config": {**SMALL, **window}, "mm_tokens_per_image": 4}
    given = prompt(4, pixel_values=pixels(1, 3, 28, 28))
    kinds = (given["input_ids"] == IMAGE).long()
    return "Gemma3ForConditionalGeneration", {**own, "image_token_index": IMAGE}, {**given, "token_type_ids": kinds}


def paligemma() -> Made:
    tower = {**TOWER, "model_type": "siglip_vision_model", "projection_dim": 32}
    own = {"vision_config": tower, "text_config": {**SMALL, "model_type": "gemma"}, "projection_dim": 32}
    given = prompt(4, (), pixel_values=pixels(1, 3, 28, 28))
    kinds = torch.zeros_like(given["input_ids"])
    return "PaliGemmaForConditionalGeneration", {**own, "image_token_index": IMAGE}, {**given, "token_type_ids": kinds}


def _qwen(kind: str, tower: Mapping[str, Any]) -> Made:
    own = {"text_config": THREE, "vision_config": dict(tower), "image_token_id": IMAGE, "vision_start_token_id": 96}
    given = prompt(4, (5, 96), pixel_values=pixels(16, 96), image_grid_thw=torch.tensor([[1, 4, 4]]))
    return kind, {**own, "video_token_id": 97}, {**given, "mm_token_type_ids": (given["input_ids"] == IMAGE).long()}


def qwen2_vl() -> Made:
    tower = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
    return _qwen("Qwen2VLForConditionalGeneration", tower)


def qwen2_5_vl() -> Made:
    windows = {"window_size": 16, "fullatt_block_indexes": [1]}
    return _qwen("Qwen2_5_VLForConditionalGeneration", {**PATCHES, "out_hidden_size": 32, **windows})


def qwen3_vl() -> Made:
    deep = {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    return _qwen("Qwen3VLForConditionalGeneration", {**PATCHES, "out_hidden_size": 32, **deep})


def qwen2_audio() -> Made:
    own = {"audio_config": SOUND, "text_config": {**SMALL, "model_type": "qwen2"}, "audio_token_index": IMAGE}
    heard = {"input_features": pixels(1, 8, 24), "feature_attention_mask": torch.ones(1, 24, dtype=torch.int64)}
    return "Qwen2AudioForConditionalGeneration", own, prompt(6, **heard)


def florence2() -> Made:
    """An encoder-decoder: what is seen is in the prompt of its encoder."""
    stages = {"depths": [1, 1], "embed_dim": [16, 32], "num_heads": [2, 4], "num_groups": [2, 4], "window_size": 4}
    patches = {"patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True]}
    tower = {**stages, **patches, "projection_dim": 32, "initializer_range": 0.2}
    text = {"model_type": "bart", "vocab_size": 99, "d_model": 32, "init_std": 0.1, "max_position_embeddings": 128}
    for part in ("encoder", "decoder"):
        text |= {f"{part}_layers": 2, f"{part}_attention_heads": 4, f"{part}_ffn_dim": 48}
    text |= {"pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 2}
    text |= {"eos_token_id": None, "forced_eos_token_id": None}
    own = {"vision_config": tower, "text_config": text, "image_token_id": IMAGE}
    return "Florence2ForConditionalGeneration", own, prompt(17, pixel_values=pixels(1, 3, 32, 32))


def images(count: int) -> dict[str, torch.Tensor]:
    """A prompt of `llava` with so many images."""
    return prompt(4 * count, pixel_values=pixels(count, 3, 28, 28))


def tiles(rows: int, columns: int) -> dict[str, torch.Tensor]:
    """A prompt of `llava_next` with an image in so many tiles, beside a small one of the whole."""
    size = torch.tensor([[28 * rows, 28 * columns]])
    count = rows * columns
    return prompt(4 + 4 * count + 2 * rows, pixel_values=pixels(1, count + 1, 3, 28, 28), image_sizes=size)


def patches(*sizes: tuple[int, int]) -> dict[str, torch.Tensor]:
    """A prompt of a model of Qwen's kind with images of so many patches."""
    counts = [rows * columns for rows, columns in sizes]
    ids = torch.tensor([[5, *(token for count in counts for token in (96, *[IMAGE] * (count // 4))), 7, 9]])
    given = {"pixel_values": pixels(sum(counts), 96), "image_grid_thw": torch.tensor([(1, *size) for size in sizes])}
    kinds = {"mm_token_type_ids": (ids == IMAGE).long()}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **given, **kinds}


def sized(*sizes: tuple[int, int]) -> dict[str, torch.Tensor]:
    """A prompt of `mistral3` with images of such sizes."""
    shown = torch.zeros(len(sizes), 3, *map(max, zip(*sizes, strict=True)))
    for image, (rows, columns) in zip(shown, sizes, strict=True):
        image[:, :rows, :columns] = pixels(3, rows, columns)
    count = sum(rows // 14 * (columns // 14) for rows, columns in sizes)
    return prompt(count, pixel_values=shown, image_sizes=torch.tensor(sizes))


def sound(frames: int) -> dict[str, torch.Tensor]:
    """A prompt of `qwen3_omni` with a sound of whole chunks of 100 frames, each of which is 13 tokens."""
    given = prompt(frames // 100 * 13, (5, 94), input_features=pixels(1, 8, frames))
    ids = given["input_ids"].masked_fill(given["input_ids"] == IMAGE, 95)
    return {**given, "input_ids": ids, "feature_attention_mask": torch.ones(1, frames, dtype=torch.int64)}


SIGHTS: Final[Mapping[str, Callable[[], Made]]] = {
    each.__name__: each
    for each in (llava, llava_next, mistral3, smolvlm, internvl, gemma3, paligemma, qwen2_vl, qwen2_5_vl, qwen3_vl)
} | {each.__name__: each for each in (qwen2_audio, florence2, *MORE)}

ALIKE: Final = ("llava", "mistral3", "internvl", "qwen2_vl")
"""Models whose code is that of another: a tower, a projection, and hidden states in the place of tokens; or grids."""


def model(name: str, dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, torch.Tensor]]:
    """A small model, and what a processor gives for a prompt."""
    import transformers

    kind, fields, given = SIGHTS[name]()
    if not hasattr(transformers, kind):
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    try:
        made = cls(cls.config_class(**fields)).eval()
    except ImportError as error:  # its tower is a network of timm, and transformers takes no other in its place
        pytest.skip(str(error))
    if any(type(each).__module__.startswith("timm.") for each in made.modules()):
        pytest.skip(f"transformers {transformers.__version__} makes its tower by timm, and takes no other in its place")
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter * 3 if parameter.any() else torch.randn_like(parameter))
    made.generation_config.eos_token_id = None
    return made.to(dtype), cast(given, dtype)


def cast(given: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The floats of a prompt in a dtype."""
    return {n: x.to(dtype) if x.is_floating_point() else x for n, x in given.items()}
