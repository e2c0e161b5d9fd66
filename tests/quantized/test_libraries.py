"""What NVIDIA ModelOpt and torchao quantize is one engine, and gives what the library's own eager gives."""

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.compiled import Compiled
from tests.quantized.models import COMPILE, by_modelopt, by_pt2e, by_torchao, rows, two

torchao = pytest.importorskip("torchao.quantization")

CLOSE = 1e-6
"""Scales are divided by in one place, and multiplied with their reciprocals in the other."""

TORCHAO = {
    "int8, weights": (torchao.Int8WeightOnlyConfig(), torch.float32, "int8"),
    "int4 in groups, weights": (
        torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(64)),
        torch.float32,
        "int4",
    ),
    "int4 by channel, weights": (torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4), torch.float32, "int4"),
    "fp8, weights": (torchao.Float8WeightOnlyConfig(), torch.bfloat16, "float8_e4m3fn"),
}
MODELOPT = {
    "INT8_DEFAULT_CFG": ("int8", 2),
    "INT8_SMOOTHQUANT_CFG": ("int8", 2),
    "INT8_WEIGHT_ONLY_CFG": ("int8", 0),
    "FP8_DEFAULT_CFG": ("float8_e4m3fn", 2),
    "INT4_BLOCKWISE_WEIGHT_ONLY_CFG": ("int4", 0),
    "INT4_AWQ_CFG": ("int4", 0),
}


def kept(compiled: Compiled) -> list[str]:
    """The dtypes of a program's matrices."""
    return [weight.dtype for weight in compiled.networks[0].weights if len(weight.shape) == 2 and weight.shape[0] > 8]


def error(model: nn.Module, compiled: Compiled, x: torch.Tensor) -> float:
    """How far the program is from the library's eager, relative to it."""
    with torch.no_grad():
        wanted = model(x)
    return float((compiled(x).float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("config", MODELOPT)
def test_modelopt(config: str) -> None:
    model, (dtype, quantizers) = by_modelopt(config), MODELOPT[config]
    compiled = COMPILE(model, args=(rows(),))
    assert kept(compiled) == [dtype, dtype]
    assert compiled.networks[0].kinds().get("QUANTIZE", 0) == quantizers
    assert error(model, compiled, rows()) < CLOSE


@pytest.mark.parametrize("case", TORCHAO)
def test_torchao(case: str) -> None:
    config, dtype, kind = TORCHAO[case]
    model = by_torchao(config, two().to(dtype))
    compiled = COMPILE(model, args=(rows().to(dtype),))
    assert kept(compiled) == [kind, kind]
    assert error(model, compiled, rows().to(dtype)) < CLOSE


def test_pt2e_with_zero_points_is_bit_exact() -> None:
    model = by_pt2e()
    compiled = COMPILE(model, args=(rows(),))
    assert kept(compiled) == ["int8", "int8"]
    assert error(model, compiled, rows()) == 0


def test_modelopt_exported_before() -> None:
    model = by_modelopt("FP8_DEFAULT_CFG")
    utilities = pytest.importorskip("modelopt.torch.quantization.utils")
    with utilities.export_torch_mode():
        exported = torch.export.export(model, (rows(),), strict=False)
    assert error(model, COMPILE(exported, args=(rows(),)), rows()) < CLOSE


def test_batches_of_any_size() -> None:
    model = by_modelopt("INT8_DEFAULT_CFG")
    batch = pipeline.Input(min_shape=(1, 256), opt_shape=(4, 256), max_shape=(8, 256), dtype=torch.float32)
    compiled = COMPILE(model, args=(batch,))
    for size in (1, 3, 8):
        assert error(model, compiled, rows()[:size]) < CLOSE


def test_linear_layers_read_their_weights_as_they_lie() -> None:
    """``[K, N]`` and no transposition of what was dequantized: the builder fuses that."""
    network = COMPILE(by_modelopt("INT8_DEFAULT_CFG"), args=(rows(),)).networks[0]
    products = [layer for layer in network.layers if layer.kind == "MATRIX_MULTIPLY"]
    makers = {tensor.name: layer for layer in network.layers for tensor in layer.outputs}
    assert len(products) == 2
    for product in products:
        assert (product.attribute("op0"), product.attribute("op1")) == ("NONE", "NONE")
        assert makers[str(product.inputs[1])].kind == "DEQUANTIZE"


@pytest.mark.parametrize(
    ("config", "kind", "scales"),
    [
        ("NVFP4_DEFAULT_CFG", "float4_e2m1fn_x2", "float8_e4m3fn"),
        ("MXFP8_DEFAULT_CFG", "float8_e4m3fn", "float8_e8m0fnu"),
    ],
)
def test_scales_of_blocks_are_kept_in_their_bits(config: str, kind: str, scales: str) -> None:
    """ModelOpt has kernels for these on a GPU only, so that the numbers are those of the definition."""
    model: Any = by_modelopt(config)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=("12.0",))
    from pipeline.stages.unbuilt import unbuilt

    compiled = compile.replace("build", unbuilt)(model, args=(rows(),))
    weights = {weight.dtype for weight in compiled.networks[0].weights if len(weight.shape) == 2}
    assert weights == {kind, scales}
    plain = two()
    assert 0 < error(plain, compiled, rows()) < 0.2


DYNAMIC = {
    "int8": torchao.Int8DynamicActivationInt8WeightConfig(),
    "int4": torchao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=torchao.PerGroup(64)
    ),
}
"""Scales of activations are made of the numbers of each call."""


@pytest.mark.parametrize("name", DYNAMIC)
def test_scales_made_of_the_numbers_of_a_call_are_one_engine(name: str) -> None:
    """Codes between layers are int32, since TensorRT-RTX has INT8 of weights and pairs only."""
    model = by_torchao(DYNAMIC[name])
    compiled = COMPILE(model, args=(rows(),))
    assert len(compiled.networks) == 1 and not compiled.coverage.fallback
    assert error(model, compiled, rows()) < CLOSE
