"""``python -m benchmarks.quantized``: what engines of quantized models hold and fuse, and on a GPU what a call takes.

ViT, BERT and a Llama-like decoder with random weights, quantized by NVIDIA ModelOpt and by torchao, are built for 8.9
and for 12.0. Without a GPU the plans are all there is: nothing is said of speed. It needs a
TensorRT that builds quantized networks (RTX 1.6.1 or newer).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import torch
from attrs import frozen
from torch import nn

import pipeline
from benchmarks.environment import save

Tensor = torch.Tensor
Quantizer: TypeAlias = Callable[[nn.Module, tuple[Any, ...]], nn.Module]
CAPABILITIES: Final = ("8.9", "12.0")
CALLS: Final = 50


class First(nn.Module):
    """A model of transformers, of which only the first result is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The last hidden state, or the logits."""
        made: Tensor = self.model(x, return_dict=False)[0]
        return made


def vit(layers: int, width: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """A vision transformer, and an image for it."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        image_size=64,
        patch_size=16,
    )
    return First(ViTModel(config, add_pooling_layer=False)).eval(), (torch.randn(4, 3, 64, 64),)


def bert(layers: int, width: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """BERT, and a batch of texts for it."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        vocab_size=1024,
    )
    return First(BertModel(config, add_pooling_layer=False)).eval(), (torch.randint(0, 1024, (2, 64)),)


def llama(layers: int, width: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """A decoder as Llama's, and a batch of texts for it."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        intermediate_size=2 * width,
        vocab_size=1024,
        use_cache=False,
    )
    return First(LlamaModel(config)).eval(), (torch.randint(0, 1024, (2, 64)),)


MODELS: Final = {"vit": vit, "bert": bert, "llama": llama}


def modelopt(config: str) -> Quantizer:
    """NVIDIA ModelOpt with one of its configurations, calibrated on the example."""

    def quantizer(model: nn.Module, args: tuple[Any, ...]) -> nn.Module:
        import modelopt.torch.quantization as quantization

        made: nn.Module = quantization.quantize(model, getattr(quantization, config), lambda m: m(*args))
        return made

    return quantizer


def torchao(name: str, **options: Any) -> Quantizer:
    """torchao's ``quantize_`` with one of its configurations."""

    def quantizer(model: nn.Module, args: tuple[Any, ...]) -> nn.Module:
        import torchao.quantization as quantization

        granularity = quantization.PerGroup(options["group"]) if "group" in options else None
        more = {"weight_dtype": torch.int4, "granularity": granularity} if granularity is not None else {}
        quantization.quantize_(model, getattr(quantization, name)(**more))
        return model

    return quantizer


QUANTIZERS: Final[dict[str, tuple[int, Quantizer]]] = {
    "ModelOpt INT8": (8, modelopt("INT8_DEFAULT_CFG")),
    "ModelOpt FP8": (8, modelopt("FP8_DEFAULT_CFG")),
    "ModelOpt INT4": (4, modelopt("INT4_BLOCKWISE_WEIGHT_ONLY_CFG")),
    "torchao INT8": (8, torchao("Int8WeightOnlyConfig")),
    "torchao FP8": (8, torchao("Float8WeightOnlyConfig")),
    "torchao INT4": (4, torchao("IntxWeightOnlyConfig", group=64)),
}
"""By name, the bits of a weight of a linear layer, and how a model gets them."""


@frozen
class Made:
    """A model, what it is called with, and the bytes that its linear layers' weights should take."""

    model: nn.Module
    args: tuple[Any, ...]
    expected: int


def made(name: str, quantizer: str, layers: int, width: int, dtype: torch.dtype) -> Made:
    """A model that a library has quantized, in a dtype."""
    torch.manual_seed(0)
    model, args = MODELS[name](layers, width)
    model = model.to(dtype)
    args = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    bits, quantize = QUANTIZERS[quantizer]
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    others = sum(p.numel() for p in model.parameters()) - linear
    return Made(quantize(model, args), args, linear * bits // 8 + others * dtype.itemsize)


def error(compiled: pipeline.Compiled, ready: Made) -> float:
    """How far the program is from the library's own eager, relative to it."""
    with torch.no_grad():
        wanted = ready.model(*ready.args)
    return float((compiled(*ready.args).float() - wanted.float()).norm() / wanted.float().norm())


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each model, quantizer and compute capability."""
    dtype = getattr(torch, options.dtype)
    for name in options.models:
        for quantizer in options.quantizers:
            for capability in options.capabilities:
                ready = made(name, quantizer, options.layers, options.width, dtype)
                compile = pipeline.default(compute_capabilities=(capability,))
                compiled = compile(ready.model, args=ready.args)
                products = [pair for pair in compiled.quantization if pair.of == "weight"]
                row = {
                    "model": name,
                    "quantizer": quantizer,
                    "capability": capability,
                    "engines": len(compiled.engines),
                    "fallbacks": len(compiled.coverage.fallback),
                    "engine_bytes": sum(engine.nbytes for engine in compiled.engines),
                    "expected_bytes": ready.expected,
                    "weights": len(products),
                    "fused": sum(bool(pair.fused) for pair in products),
                    "pairs": len(compiled.quantization) - len(products),
                    "pairs_fused": sum(bool(p.fused) for p in compiled.quantization if p.of == "activation"),
                    "relative_error": error(compiled, ready),
                }
                yield row | (timed(compiled, ready) if torch.cuda.is_available() else {})


def timed(compiled: pipeline.Compiled, ready: Made) -> dict[str, Any]:
    """Milliseconds of a call on this GPU, by a replayed graph; and of the same model in eager."""
    args = tuple(a.cuda() for a in ready.args)
    module = compiled.module(cuda_graphs=True)
    found = {}
    for name, call in (("gpu_ms", lambda: module(*args)), ("eager_ms", lambda: ready.model.cuda()(*args))):
        taken = []
        for _ in range(CALLS):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            call()
            torch.cuda.synchronize()
            taken.append(1e3 * (time.perf_counter() - begun))
        found[name] = statistics.median(taken[CALLS // 5 :])
    return found


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    ratio = row["engine_bytes"] / row["expected_bytes"]
    took = f", {row['gpu_ms']:.3f} ms (eager {row['eager_ms']:.3f})" if "gpu_ms" in row else ""
    return (
        f"{row['model']} {row['quantizer']} {row['capability']}: {row['engines']} engine, "
        f"{row['fallbacks']} fallbacks, "
        f"{row['fused']} of {row['weights']} weights and {row['pairs_fused']} of {row['pairs']} pairs fused, "
        f"{row['engine_bytes'] / 1e6:.1f} MB ({ratio:.2f} of the weights' bits), "
        f"error {row['relative_error']:.1e}{took}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Builds, measures, prints, and saves if asked to."""
    parser = argparse.ArgumentParser(description="what engines of quantized models hold and fuse")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--quantizers", nargs="+", default=list(QUANTIZERS), choices=list(QUANTIZERS))
    parser.add_argument("--capabilities", nargs="+", default=list(CAPABILITIES))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results")
    options = parser.parse_args(argv)
    found = []
    for row in rows(options):
        found.append(row)
        sys.stdout.write(line(row) + "\n")
        sys.stdout.flush()
    if options.save:
        save("quantized", {"quantized": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
