"""The models of ``benchmarks.quantized`` with random weights, and the ways in which they are quantized."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from attrs import frozen
from torch import nn

import pipeline
from pipeline.improvements.quantizing import LENGTHS
from pipeline.stages.quantize import Quantize

Tensor = torch.Tensor
Args: TypeAlias = tuple[Any, ...]


class First(nn.Module):
    """A model of transformers, of which only the first result is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The last hidden state, or the logits."""
        made: Tensor = self.model(x, return_dict=False)[0]
        return made


def vit(layers: int, width: int) -> tuple[nn.Module, Args]:
    """A vision transformer (ViT-B: 12 layers, a width of 768), and an image of 224 by 224 for it."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        image_size=224,
        patch_size=16,
    )
    return First(ViTModel(config, add_pooling_layer=False)).eval(), (torch.randn(1, 3, 224, 224),)


def bert(layers: int, width: int) -> tuple[nn.Module, Args]:
    """BERT (BERT-base: 12 layers, a width of 768) with about as many words as BERT's, and a text of 128 for it."""
    from transformers import BertConfig, BertModel

    words = 40 * width
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        vocab_size=words,
    )
    return First(BertModel(config, add_pooling_layer=False)).eval(), (torch.randint(0, words, (1, 128)),)


def llama(layers: int, width: int) -> tuple[nn.Module, Args]:
    """A decoder as Llama's, twice as wide, with its logits, and a text of 128 for it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, words = 2 * width, 20 * width
    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        intermediate_size=8 * width // 3 // 64 * 64,
        vocab_size=words,
        use_cache=False,
    )
    return First(LlamaForCausalLM(config)).eval(), (torch.randint(0, words, (1, 128)),)


def step(layers: int, width: int) -> tuple[nn.Module, Args]:
    """The same decoder for one token, as in a step of generation: each weight is read for one row."""
    model, (tokens,) = llama(layers, width)
    return model, (tokens[:, :1],)


MODELS: Final = {"vit": vit, "bert": bert, "llama": llama, "step": step}


@frozen
class Way:
    """One way to quantize: the bits of a linear layer's weight, who does it and how.

    Attributes:
        bits: of a weight of a linear layer, or None for those of the model's dtype.
        library: what it needs installed.
        of: makes the quantized model, given the model and its inputs.
        stage: makes the stage that quantizes instead, given the inputs.
        scales: the number of scales of a layer's weight, or None if it stays in the model's dtype.
    """

    bits: int | None
    library: str
    of: Callable[[nn.Module, Args], nn.Module] = lambda model, _: model
    stage: Callable[[Args], Quantize] | None = None
    scales: Callable[[Any], int | None] = lambda layer: None

    @property
    def is_here(self) -> bool:
        """Whether what it needs is installed."""
        return importlib.util.find_spec(self.library) is not None


def by_modelopt(bits: int, config: str) -> Way:
    """NVIDIA ModelOpt with one of its configurations, calibrated on the example."""

    def quantizer(model: nn.Module, args: Args) -> nn.Module:
        import modelopt.torch.quantization as quantization

        made: nn.Module = quantization.quantize(model, getattr(quantization, config), lambda m: m(*args))
        return made

    def scales(layer: Any) -> int | None:
        found = layer.weight_quantizer
        return int(found.amax.numel()) if found.is_enabled else None

    return Way(bits, "modelopt", quantizer, scales=scales)


def by_torchao(bits: int, name: str, group: int | None = None) -> Way:
    """torchao's ``quantize_`` with one of its configurations."""

    def quantizer(model: nn.Module, args: Args) -> nn.Module:
        import torchao.quantization as quantization

        more = {"weight_dtype": torch.int4, "granularity": quantization.PerGroup(group)} if group else {}
        quantization.quantize_(model, getattr(quantization, name)(**more))
        return model

    def scales(layer: Any) -> int | None:
        scale = getattr(layer.weight, "scale", None)
        return None if scale is None else int(scale.numel())

    return Way(bits, "torchao", quantizer, scales=scales)


def by_us(bits: int, weights: Any, activations: Any = None) -> Way:
    """`pipeline.quantize`, calibrated on the example."""

    def stage(args: Args) -> Quantize:
        return pipeline.quantize(weights, activations, calibration=[args] if activations else ())

    def scales(layer: Any) -> int | None:
        if bits == 8:
            return len(layer.weight)
        length = next((n for n in LENGTHS if layer.weight[0].numel() % n == 0), None)
        return layer.weight.numel() // length if isinstance(layer, nn.Linear) and length else None

    return Way(bits, "pipeline", stage=stage, scales=scales)


PLAIN: Final = "not quantized"
WAYS: Final = {
    PLAIN: Way(None, "pipeline"),
    "pipeline INT8 weights": by_us(8, "int8"),
    "pipeline INT8": by_us(8, "int8", "int8"),
    "pipeline FP8 weights": by_us(8, "fp8"),
    "pipeline FP8": by_us(8, "fp8", "fp8"),
    "pipeline INT4 weights": by_us(4, "int4"),
    "ModelOpt INT8": by_modelopt(8, "INT8_DEFAULT_CFG"),
    "ModelOpt FP8": by_modelopt(8, "FP8_DEFAULT_CFG"),
    "ModelOpt INT4 weights": by_modelopt(4, "INT4_BLOCKWISE_WEIGHT_ONLY_CFG"),
    "torchao INT8 weights": by_torchao(8, "Int8WeightOnlyConfig"),
    "torchao FP8 weights": by_torchao(8, "Float8WeightOnlyConfig"),
    "torchao INT4 weights": by_torchao(4, "IntxWeightOnlyConfig", group=64),
}
"""By name; weights and activations unless it says otherwise."""


@frozen
class Made:
    """A quantized model, its inputs, the compiler for it, and the bytes that its weights take."""

    model: nn.Module
    args: Args
    compile: pipeline.Pipeline
    expected: int


def made(name: str, way: str, layers: int, width: int, dtype: torch.dtype, **settings: Any) -> Made:
    """A model that is quantized in one way, in a dtype; the compiler has these settings."""
    torch.manual_seed(0)
    model, args = MODELS[name](layers, width)
    model = model.to(dtype)
    args = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    how, compile = WAYS[way], pipeline.default(**settings)
    if how.stage is not None:
        compile = compile.insert(how.stage(args), before="decompose")
    model = how.of(model, args)
    return Made(model, args, compile, weight_bytes(model, how, dtype.itemsize))


def weight_bytes(model: nn.Module, how: Way, size: int) -> int:
    """The bytes that a model's weights take: codes in their bits, scales of rows in float32 and those of blocks in the
    model's dtype, which has elements of this size, and all that is not quantized in that dtype. TensorRT takes the
    weights of linear layers in INT4 and none of convolutions."""
    total = size * sum(p.numel() for p in model.parameters())
    for layer in model.modules():
        takes = isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and how.bits == 8)
        count = how.scales(layer) if takes and how.bits is not None else None
        if count is not None:
            weight: Any = layer.weight
            total += weight.numel() * (how.bits or 0) // 8 - weight.numel() * size
            total += count * (4 if how.bits == 8 else size)
    return total
