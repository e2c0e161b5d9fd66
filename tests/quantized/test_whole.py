"""Whole quantized linears, casts to E4M3, and operators of several results, as exports have them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.decomposition import quantized_activations
from pipeline.decomposition.quantized_activations import SATURATES
from pipeline.trt import CAPABILITIES
from tests.quantized.models import COMPILE, by_torchao, two

Tensor = torch.Tensor
E4M3 = torch.float8_e4m3fn
linear = nn.functional.linear


class Of(nn.Module):
    """A function of an input and of the model's tensors."""

    def __init__(self, of: Callable[..., Tensor], **tensors: Tensor) -> None:
        super().__init__()
        self.of, self.names = of, tuple(tensors)
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        """What the function gives."""
        return self.of(x, *(getattr(self, name) for name in self.names))


def rows(dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows that go beyond E4M3's range where they are multiplied by 200."""
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(2)).to(dtype)


def eighths(x: Tensor) -> Tensor:
    return x.clamp(-448, 448).to(E4M3)


WEIGHT = torch.randn(32, 64, generator=torch.Generator().manual_seed(3))
SCALED = torch._scaled_mm


def tensorwise(x: Tensor, w: Tensor) -> Tensor:
    return SCALED(eighths(200 * x), w.t(), torch.tensor(0.005), torch.tensor(0.013), out_dtype=torch.bfloat16)


def rowwise(x: Tensor, w: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).float() / 448
    columns = torch.linspace(0.01, 0.03, 32)[None]
    bias = columns[0].bfloat16()
    return SCALED(eighths(x.float() / scale), w.t(), scale, columns, bias=bias, out_dtype=torch.bfloat16)


def in_three_dims(x: Tensor, w: Tensor) -> Tensor:
    codes = eighths(x.reshape(2, 8, 64)).reshape(-1, 64)
    return SCALED(codes, w.t(), torch.tensor(1.5), torch.tensor(0.013), out_dtype=torch.float32).reshape(2, 8, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of", [tensorwise, rowwise, in_three_dims])
def test_scaled_products_are_pairs_by_codes(of: Callable[..., Tensor], dtype: torch.dtype) -> None:
    model, x = Of(of, w=WEIGHT.to(E4M3)).eval(), rows(dtype)
    compiled = COMPILE(model, args=(x,))
    kinds = compiled.networks[0].kinds()
    assert (kinds["QUANTIZE"], kinds["DEQUANTIZE"], kinds["MATRIX_MULTIPLY"]) == (1, 2, 1)
    assert [w.dtype for w in compiled.networks[0].weights if len(w.shape) == 2 and w.shape[0] > 1] == ["float8_e4m3fn"]
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not CAPABILITIES.quantization, reason="TensorRT-RTX builds quantized networks from 1.6 on")
@pytest.mark.parametrize("of", [tensorwise, rowwise, in_three_dims])
def test_scaled_products_are_fused(of: Callable[..., Tensor]) -> None:
    compile = pipeline.default(require_fused_quantization=True, compute_capabilities=("8.9",))
    compiled = compile(Of(of, w=WEIGHT.to(E4M3)).eval(), args=(rows(),))
    assert [row.fused for row in compiled.quantization] == [True, True]


@pytest.mark.parametrize("clamped", [False, True])
@pytest.mark.parametrize("saturates", [False, True])
def test_a_cast_beyond_the_range_is_what_torch_makes_of_it(
    clamped: bool, saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.13 gives the last number, and those before it gave NaN."""
    monkeypatch.setattr(quantized_activations, "SATURATES", saturates)
    model = Of(lambda x, w: linear((eighths(x) if clamped else x.to(E4M3)).to(x.dtype), w), w=WEIGHT).eval()
    x = rows()
    x[0, 0] = 465
    compiled = COMPILE(model, args=(x,))
    is_nan = not saturates and not clamped
    assert compiled.networks[0].kinds().get("SELECT", 0) == 2 * clamped + is_nan, "a clamp has two"
    assert bool(compiled(x)[0].isnan().all()) is is_nan
    torch.testing.assert_close(compiled(x)[1:], model(x)[1:], rtol=1e-5, atol=1e-5)
    if clamped or saturates == SATURATES:
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_codes_that_the_model_gives_stay_a_cast() -> None:
    model, x = Of(eighths).eval(), rows()
    assert torch.equal(pipeline.default()(model, args=(x,))(x).view(torch.uint8), eighths(x).view(torch.uint8))


def fakes(x: Tensor, w: Tensor) -> Tensor:
    zero = torch.zeros(32, dtype=torch.int32)
    x = torch.fake_quantize_per_tensor_affine(x, torch.tensor(0.02), torch.tensor(0, dtype=torch.int32), -128, 127)
    x = torch.fake_quantize_per_tensor_affine(x * 0.7, 0.02, 0, -128, 127)
    return linear(x, torch.fake_quantize_per_channel_affine(w, torch.linspace(0.01, 0.03, 32), zero, 0, -127, 127))


def test_fake_quantizers_that_torch_took_apart() -> None:
    """``run_decompositions`` makes of each an operator that gives a mask as well."""
    model, x = Of(fakes, w=WEIGHT).eval(), rows()
    exported = torch.export.export(model, (x,)).run_decompositions()
    assert sum("cachemask" in str(node.target) for node in exported.graph.nodes) == 3
    compiled = COMPILE(exported)
    kinds = compiled.networks[0].kinds()
    assert (kinds["QUANTIZE"], kinds["DEQUANTIZE"]) == (2, 3)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_mask_that_is_read_stays() -> None:
    def of(x: Tensor, w: Tensor) -> Tensor:
        made, mask = torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x, 0.02, 0, -128, 127)
        return linear(made * mask, w)

    compiled = pipeline.default()(Of(of, w=WEIGHT).eval(), args=(rows(),))
    assert "aten.fake_quantize_per_tensor_affine_cachemask.default" in {f.target for f in compiled.coverage.fallback}
    torch.testing.assert_close(compiled(rows()), of(rows(), WEIGHT), rtol=1e-5, atol=1e-5)


CHOICES = {
    "choose_qparams": (-128, 127, torch.int8),
    "choose_qparams, unsigned": (0, 255, torch.uint8),
    "choose_qparams_symmetric": (-127, 127, torch.int8),
    "choose_qparams_symmetric, unsigned": (0, 255, torch.uint8),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CHOICES)
def test_scales_that_pt2e_makes_of_a_tensor(name: str, dtype: torch.dtype) -> None:
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    steps, ends = torch.ops.quantized_decomposed, CHOICES[name]

    def of(x: Tensor, w: Tensor) -> Tensor:
        found = getattr(steps, name.partition(",")[0]).tensor(x, *ends[:2], 1e-5, ends[2])
        codes = steps.quantize_per_tensor.tensor(x.float(), *found, *ends)
        return linear(steps.dequantize_per_tensor.tensor(codes, *found, *ends), w)

    model = Of(of, w=WEIGHT).eval()
    compiled = COMPILE(model, args=(rows(dtype),))
    for x in (rows(dtype), 3 + rows(dtype).abs(), torch.zeros_like(rows(dtype))):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["choose_qparams_per_token", "choose_qparams_per_token_asymmetric"])
def test_scales_that_pt2e_makes_of_tokens(name: str) -> None:
    """The library says that zero points are int64, and gives float32: an engine was handed what it does not take."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    steps = torch.ops.quantized_decomposed

    def of(x: Tensor, w: Tensor) -> Tensor:
        found = getattr(steps, name)(x, torch.int8)
        codes = steps.quantize_per_token(x, *found, -128, 127, torch.int8)
        return linear(steps.dequantize_per_token(codes, *found, -128, 127, torch.int8, torch.float32), w)

    model, x = Of(of, w=WEIGHT).eval(), rows()
    torch.testing.assert_close(COMPILE(model, args=(x,))(x), model(x), rtol=1e-5, atol=1e-5)


def test_ends_that_are_tensors() -> None:
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    steps = torch.ops.quantized_decomposed

    def of(x: Tensor, w: Tensor) -> Tensor:
        given = [[*map(torch.tensor, (0.02, 0, -128, 127))] for _ in range(2)]
        codes = steps.quantize_per_tensor.tensor2(x, *given[0], torch.int8)
        return linear(steps.dequantize_per_tensor.tensor2(codes, *given[1], torch.int8), w)

    model, x = Of(of, w=WEIGHT).eval(), rows()
    compiled = COMPILE(model, args=(x,))
    assert compiled.networks[0].kinds()["QUANTIZE"] == 1
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_parameter_that_an_export_keeps_whole_is_refused() -> None:
    """It was taken for a plain tensor, and the result was NaN."""
    formats: Any = pytest.importorskip("torchao.prototype.mx_formats")
    model = by_torchao(formats.NVFP4WeightOnlyConfig(), two())
    with pytest.raises(pipeline.CaptureError, match=r"NVFP4Tensor, which torch\.export does not flatten"):
        pipeline.capture(model, (torch.randn(4, 256),))
