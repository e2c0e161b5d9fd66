"""Quantized networks on a GPU: cells of docs/quantization-forms.md, models, and large products, beside exact ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from benchmarks.quantized_cells import Cell, Form, cells, given, outcome, validated
from benchmarks.quantized_models import MODELS
from pipeline.aten.quantized import operators
from pipeline.improvements.quantizing import fake_quantize_weight
from pipeline.quirks import is_avoided
from pipeline.trt import CAPABILITIES
from tests.quantized.schemas import define_missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CAPABILITIES.quantization, reason="TensorRT-RTX builds quantized networks from 1.6 on"),
]

HERE = "tensorrt"
"""What runs the networks that are looked at."""

FLOATS = Form("floats", "float32", "nothing", lambda x: x)
HAS_FP4 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (12, 0)
CELLS = list(cells())
WIDTH = 4096
PRODUCTS = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 2e-3}
"""How far a product may be from float64's, relative to it: some units in the last place; float32 multiplies in TF32."""


ROUNDED_ONCE = 3.2e-4
"""The same for float16 that is summed in float32: numbers are rounded by 2.1e-4 in the mean square."""


def compiler(**settings: Any) -> pipeline.Pipeline:
    """Engines for the GPU at hand: those of FP4 are built for its own capability."""
    return pipeline.default(
        require_full_compilation=True, compute_capabilities=("12.0",) if HAS_FP4 else (), **settings
    )


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far a result is from another, relative to it; infinite for what is not finite."""
    got, wanted = got.detach().cpu().double(), wanted.detach().cpu().double()
    assert bool(torch.isfinite(wanted).all())
    return float((got - wanted).norm() / wanted.norm()) if bool(torch.isfinite(got).all()) else float("inf")


def named(row: tuple[Form, str, bool]) -> str:
    form, operator, activations = row
    return f"{form.name} {form.type} {form.shares} {operator}{' both' * activations}".replace("`", "")


@pytest.fixture(scope="module")
def every_operator() -> None:
    """Operators of libraries that are not installed are known by their schemas."""
    define_missing()


@pytest.mark.parametrize("row", CELLS, ids=named)
@pytest.mark.usefixtures("every_operator")
def test_a_cell_is_what_the_reference_gives(row: tuple[Form, str, bool]) -> None:
    """Half of the quantization's own error is left to products in TF32 and to numbers between two codes."""
    form, operator, activations = row
    said = outcome(validated(form, operator, activations))
    if said.startswith("no:") or said == "the library takes none":
        pytest.skip(f"no engine has it: {said}")
    if form.type == "NVFP4" and not HAS_FP4:
        pytest.skip("FP4 needs a GPU of compute capability 12.0")
    x = given(operator)
    compiled = compiler()(Cell(operator, form, activations).eval(), args=(x,))
    reference = compiled.module("reference")(x)
    own = error(reference, Cell(operator, FLOATS, False)(x))
    assert own > 0
    assert error(compiled.module(HERE)(x), reference) <= own / 2


QUANTIZED = [("int8", None), ("fp8", None), ("int4", None), ("int8", "int8"), ("fp8", "fp8")]


@pytest.mark.parametrize("kinds", QUANTIZED, ids=lambda kinds: f"{kinds[0]} by {kinds[1]}")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_what_the_reference_gives(name: str, kinds: tuple[Any, Any]) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, args = MODELS[name](2, 128)
    weights, activations = kinds
    stage = pipeline.quantize(weights, activations, calibration=[args] if activations else ())
    compiled = compiler().insert(stage, before="decompose")(model, args=args)
    assert len(compiled.engines) == 1
    assert {row.of for row in compiled.quantization} == {"weight", "activation"} - {
        "activation" if activations is None else ""
    }
    reference = compiled.module("reference")(*args)
    with torch.no_grad():
        own = error(reference, model(*args))
    assert 0 < own < 0.3
    assert error(compiled.module(HERE)(*(a.cuda() for a in args)), reference) <= own


class Rounded(nn.Module):
    """A linear layer whose weight, and whose activations if asked for, are INT8 by torch's own quantizers."""

    def __init__(self, activations: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("scale", self.linear.weight.detach().float().abs().amax(1) / 127)
        self.register_buffer("zero", torch.zeros(WIDTH, dtype=torch.int32))
        self.activations = activations

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of as many as were given."""
        if self.activations:
            x = torch.fake_quantize_per_tensor_affine(x, 0.03125, 0, -128, 127)  # exact in every dtype
        scale: Any = self.scale
        zero: Any = self.zero
        weight = torch.fake_quantize_per_channel_affine(self.linear.weight, scale, zero, 0, -127, 127)
        return nn.functional.linear(x, weight)


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize("rows", [1, 128, WIDTH])
@pytest.mark.parametrize("activations", [False, True], ids=["weights", "both"])
def test_int8_of_4096(rows: int, activations: bool, dtype: torch.dtype) -> None:
    """4096 by 4096 by 4096 in float16 gave inf, by scales in float16: sums of codes are beyond 65504 there."""
    torch.manual_seed(0)
    model = Rounded(activations).eval().cuda()
    model.linear.to(dtype)
    x = torch.randn(rows, WIDTH, device=model.linear.weight.device).to(dtype)
    compiled = compiler()(model, args=(x,))
    assert [row.type for row in compiled.quantization] == ["int8"] * (1 + activations)
    assert error(compiled.module(HERE)(x), int8_exactly(model, x)) <= PRODUCTS[dtype]


def int8_exactly(model: Rounded, x: torch.Tensor) -> torch.Tensor:
    """The layer's product of the very numbers that its codes stand for, summed in float64."""
    scale: Any = model.scale
    codes = operators.quantize(model.linear.weight, scale[:, None], "int8", [1, -1], True)
    weight = operators.dequantize(codes, scale[:, None], "int8", [1, -1], model.linear.weight.dtype)
    x = (x.double() * 32).round().clamp(-128, 127) / 32 if model.activations else x.double()
    return x @ weight.double().T


BLOCKS = {"int8": (1, -1), "fp8": (1, -1), "int4": (1, 128)}


@pytest.mark.parametrize("rows", [1, 128, WIDTH])
@pytest.mark.parametrize("kind", BLOCKS)
def test_weights_of_4096(kind: Any, rows: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH, bias=False).eval().half().cuda()
    x = torch.randn(rows, WIDTH, device=model.weight.device).half()
    compiled = compiler().insert(pipeline.quantize(kind), before="decompose")(model, args=(x,))
    weight = fake_quantize_weight(model.weight.detach(), kind, BLOCKS[kind])
    assert error(compiled.module(HERE)(x), x.double() @ weight.double().T) <= PRODUCTS[torch.float16]


def floats_of_4096(rows: int, dtype: torch.dtype, **settings: Any) -> float:
    """The error of TensorRT's own product without codes, beside which those with codes are judged."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH, bias=False).eval().to(dtype).cuda()
    x = torch.randn(rows, WIDTH, device=model.weight.device).to(dtype)
    compiled = compiler(**settings)(model, args=(x,))
    return error(compiled.module(HERE)(x), x.double() @ model.weight.double().T)


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize("rows", [1, 128, WIDTH])
def test_floats_of_4096(rows: int, dtype: torch.dtype) -> None:
    assert floats_of_4096(rows, dtype) <= (ROUNDED_ONCE if dtype == torch.float16 else PRODUCTS[dtype])


@pytest.mark.xfail(is_avoided("matmul-sums"), reason="TensorRT-RTX 1.6 sums float16 in float16", strict=True)
@pytest.mark.parametrize("rows", [128, WIDTH])
def test_floats_of_4096_as_tensorrt_sums_them(rows: int) -> None:
    assert floats_of_4096(rows, torch.float16, use_fp32_acc=False) <= ROUNDED_ONCE


class Scaled(nn.Module):
    """``torch._scaled_mm`` of rows that are cast to E4M3 with a scale each, made of their own numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(WIDTH, WIDTH).to(torch.float8_e4m3fn))
        self.register_buffer("scale", torch.linspace(0.01, 0.03, WIDTH)[None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of as many as were given, in bfloat16."""
        codes, of_rows = self.coded(x)
        weight: Any = self.weight
        scale: Any = self.scale
        return torch._scaled_mm(codes, weight.t(), of_rows, scale, out_dtype=torch.bfloat16)

    def coded(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The codes of rows, and their scales."""
        of_rows = x.abs().amax(-1, keepdim=True) / 448
        return (x / of_rows).clamp(-448, 448).to(torch.float8_e4m3fn), of_rows


@pytest.mark.parametrize("rows", [1, 128, WIDTH])
def test_scaled_products_of_4096(rows: int) -> None:
    """The result is rounded to bfloat16; a number between two codes may get either by the kernel's own division."""
    torch.manual_seed(0)
    model = Scaled().eval().cuda()
    x = torch.randn(rows, WIDTH, device="cuda")
    compiled = compiler()(model, args=(x,))
    assert [row.type for row in compiled.quantization] == ["float8_e4m3fn"] * 2
    codes, of_rows = model.coded(x)
    weight: Any = model.weight
    scale: Any = model.scale
    wanted = codes.double() @ weight.double().T * of_rows.double() * scale.double()
    assert error(compiled.module(HERE)(x), wanted) <= PRODUCTS[torch.bfloat16]


TIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int8": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -128, 127),
    "fp8": lambda x: x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype),
}


class Identity(nn.Module):
    """A product with the identity, of which the codes of the other factor are read off."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("one", torch.eye(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the codes of x stand for."""
        one: Any = self.one
        return TIES[self.kind](x) @ TIES[self.kind](one)


@pytest.mark.parametrize("kind", TIES)
def test_ties_go_to_the_even_code_and_large_numbers_to_the_last(kind: str) -> None:
    """Scales are powers of two, so that a quotient and a product with the reciprocal are the same number."""
    x = torch.cat([torch.arange(-512.0, 512.0) / 4, torch.linspace(-600, 600, 1024)]).reshape(32, 64)
    compiled = compiler()(Identity(kind), args=(x,))
    torch.testing.assert_close(compiled.module(HERE)(x), Identity(kind)(x), rtol=0, atol=0)
