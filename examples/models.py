"""Public model architectures with random weights, as cases to compile: a module, its inputs, its dynamic dims.

``small(name)`` gives a few layers of a few channels, for tests; ``full(name)`` the published size, for the demo and the
benchmarks. transformers builds all of them from a configuration; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from attrs import field, frozen
from torch.export import Dim

import pipeline
from examples.unet import UNet


@frozen
class Case:
    """A module in eval mode, example inputs by keyword, and torch.export's dynamic shapes. ``constants`` names inputs
    that are the same in each call; ``decisions`` is the setting that it needs."""

    name: str
    model: torch.nn.Module = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)
    dynamic_shapes: dict[str, Any] | None = field(repr=False)
    constants: frozenset[str] = frozenset()
    decisions: str = "refuse"

    @property
    def example(self) -> dict[str, Any]:
        """What the module is captured with."""
        return {k: pipeline.Constant(v) if k in self.constants else v for k, v in self.kwargs.items()}

    def inputs(self, **sizes: int) -> dict[str, Any]:
        """Other inputs, of the given sizes of the dynamic dims (``batch=3``)."""
        generator = torch.Generator().manual_seed(sum(sizes.values()))
        fixed = {k: v for k, v in self.kwargs.items() if k in self.constants}
        dims = self.dynamic_shapes or {}
        others = {k: v for k, v in self.kwargs.items() if k not in fixed}
        return fixed | {k: _resized(v, dims.get(k) or {}, sizes, generator) for k, v in others.items()}


def _resized(value: Any, dims: Any, sizes: dict[str, int], generator: torch.Generator) -> Any:
    if isinstance(value, list | tuple):
        each = zip(value, dims or [{}] * len(value), strict=True)
        return type(value)(_resized(v, d or {}, sizes, generator) for v, d in each)
    if isinstance(value, dict):
        return {key: _resized(each, dims.get(key) or {}, sizes, generator) for key, each in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    shape = [sizes.get(dims[i].__name__, s) if i in dims else s for i, s in enumerate(value.shape)]
    if value.is_floating_point():
        return torch.randn(shape, generator=generator).to(value.dtype)
    if value.dtype == torch.bool or int(value.max()) <= 1:  # a mask: of ones, or of zeros as the example's
        return torch.full(shape, int(value.max()), dtype=value.dtype)
    return torch.randint(3, int(value.max()) + 1, shape, generator=generator, dtype=value.dtype)


def _batch() -> Any:
    return Dim("batch", min=1, max=8)


def _image(size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"pixel_values": torch.randn(2, 3, size, size)}, {"pixel_values": {0: _batch()}}


def _tokens(vocabulary: int, length: int, longest: int) -> tuple[dict[str, Any], dict[str, Any]]:
    ids = torch.randint(3, vocabulary, (2, length))
    dims = {0: _batch(), 1: Dim("sequence", min=2, max=longest)}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, {"input_ids": dims, "attention_mask": dims}


def _resnet(depths: list[int], layer: str, widths: list[int], stem: int, size: int, **fields: Any) -> Callable[[], Any]:
    def make() -> Any:
        config = hf.ResNetConfig(depths=depths, layer_type=layer, hidden_sizes=widths, embedding_size=stem, **fields)
        return hf.ResNetForImageClassification(config), *_image(size)

    return make


def _vision(model: Any, config: Any, size: int, **fields: Any) -> Callable[[], Any]:
    return lambda: (model(config(**fields)), *_image(size))


def _text(model: Any, config: Any, vocabulary: int, length: int, longest: int, **fields: Any) -> Callable[[], Any]:
    def make() -> Any:
        return model(config(vocab_size=vocabulary, **fields)), *_tokens(vocabulary, length, longest)

    return make


def _t5(vocabulary: int, length: int, longest: int, **fields: Any) -> Callable[[], Any]:
    def make() -> Any:
        model = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=vocabulary, use_cache=False, **fields))
        kwargs, dims = _tokens(vocabulary, length, longest)
        target = torch.randint(3, vocabulary, (2, length // 2))
        dims["decoder_input_ids"] = {0: dims["input_ids"][0], 1: Dim("target", min=2, max=longest)}
        return model, {**kwargs, "decoder_input_ids": target}, dims

    return make


def _whisper(vocabulary: int, frames: int, length: int, **fields: Any) -> Callable[[], Any]:
    def make() -> Any:
        config = hf.WhisperConfig(vocab_size=vocabulary, use_cache=False, max_source_positions=frames // 2, **fields)
        model = hf.WhisperForConditionalGeneration(config)
        batch = _batch()
        kwargs = {
            "input_features": torch.randn(2, config.num_mel_bins, frames),
            "decoder_input_ids": torch.randint(3, vocabulary, (2, length)),
        }
        return (
            model,
            kwargs,
            {"input_features": {0: batch}, "decoder_input_ids": {0: batch, 1: Dim("target", min=2, max=4 * length)}},
        )

    return make


def _unet(size: int, **fields: Any) -> Callable[[], Any]:
    return lambda: (UNet(**fields), {"x": torch.randn(2, 3, size, size)}, {"x": {0: _batch()}})


_SMALL_TEXT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}

SMALL: dict[str, Callable[[], Any]] = {
    "resnet18": _resnet([2, 2, 2, 2], "basic", [16, 32, 64, 128], 16, 64),
    "resnet50": _resnet([3, 4, 6, 3], "bottleneck", [32, 64, 128, 256], 16, 64),
    "convnext": _vision(
        hf.ConvNextForImageClassification, hf.ConvNextConfig, 64, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1]
    ),
    "vit": _vision(hf.ViTForImageClassification, hf.ViTConfig, 32, image_size=32, patch_size=8, **_SMALL_TEXT),
    "swin": _vision(
        hf.SwinForImageClassification,
        hf.SwinConfig,
        32,
        image_size=32,
        patch_size=2,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "segformer": _vision(
        hf.SegformerForSemanticSegmentation,
        hf.SegformerConfig,
        64,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=32,
    ),
    "bert": _text(hf.BertModel, hf.BertConfig, 100, 12, 32, max_position_embeddings=64, **_SMALL_TEXT),
    "gpt2": _text(
        hf.GPT2LMHeadModel, hf.GPT2Config, 100, 12, 32, n_positions=64, n_embd=64, n_layer=2, n_head=4, use_cache=False
    ),
    "llama": _text(
        hf.LlamaForCausalLM,
        hf.LlamaConfig,
        100,
        12,
        32,
        max_position_embeddings=64,
        num_key_value_heads=2,
        use_cache=False,
        **_SMALL_TEXT,
    ),
    "t5": _t5(100, 12, 32, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4),
    "whisper": _whisper(
        100,
        40,
        8,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_target_positions=64,
        **_SPECIAL,
    ),
    "unet": _unet(32, channels=16, multipliers=(1, 2)),
}

FULL: dict[str, Callable[[], Any]] = {
    "resnet18": _resnet([2, 2, 2, 2], "basic", [64, 128, 256, 512], 64, 224, num_labels=1000),
    "resnet50": _resnet([3, 4, 6, 3], "bottleneck", [256, 512, 1024, 2048], 64, 224, num_labels=1000),
    "convnext": _vision(hf.ConvNextForImageClassification, hf.ConvNextConfig, 224, num_labels=1000),
    "vit": _vision(hf.ViTForImageClassification, hf.ViTConfig, 224, num_labels=1000),
    "swin": _vision(hf.SwinForImageClassification, hf.SwinConfig, 224, num_labels=1000),
    "segformer": _vision(hf.SegformerForSemanticSegmentation, hf.SegformerConfig, 512, num_labels=150),
    "bert": _text(hf.BertModel, hf.BertConfig, 30522, 128, 512),
    "gpt2": _text(hf.GPT2LMHeadModel, hf.GPT2Config, 50257, 128, 512, use_cache=False),
    "llama": _text(
        hf.LlamaForCausalLM,
        hf.LlamaConfig,
        32000,
        128,
        512,
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=5632,
        use_cache=False,
    ),
    "t5": _t5(32128, 128, 512),
    "whisper": _whisper(51865, 3000, 32),
    "unet": _unet(256, channels=64),
}


def _case(table: dict[str, Callable[[], Any]], name: str, dtype: torch.dtype) -> Case:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, kwargs, dims = table[name]()
    kwargs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in kwargs.items()}
    return Case(name, model.eval().to(dtype), kwargs, dims)


def small(name: str, dtype: torch.dtype = torch.float32) -> Case:
    """The architecture with few layers and channels."""
    return _case(SMALL, name, dtype)


def full(name: str, dtype: torch.dtype = torch.float32) -> Case:
    """The architecture in its published size."""
    return _case(FULL, name, dtype)
