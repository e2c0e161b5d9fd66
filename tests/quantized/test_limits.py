"""What the converters of quantized networks refuse, each with its reason; numbers within are in test_cells."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

import pipeline
from pipeline.aten.quantized import operators
from pipeline.converters import quantized
from pipeline.decomposition import quantized_layout
from pipeline.settings import CompilationSettings
from pipeline.trt import CAPABILITIES
from tests.quantized.models import COMPILE
from tests.quantized.schemas import define_missing

FLOAT, HALF = torch.float32, torch.float16
NEWEST = CompilationSettings(compute_capabilities=("12.0",))


def node(target: Any, value: torch.Tensor, *args: Any, computed: tuple[int, ...] = ()) -> torch.fx.Node:
    """A call whose tensors are placeholders, but for those that are ``computed``; ``value`` is what it gives."""
    graph = torch.fx.Graph()

    def given(position: int, arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        source = graph.placeholder(f"x{position}")
        source.meta["val"] = arg
        if position in computed:
            source = graph.call_function(torch.ops.aten.abs.default, (source,))
            source.meta["val"] = arg
        return source

    call = graph.call_function(target, tuple(given(i, arg) for i, arg in enumerate(args)))
    call.meta["val"] = value
    return call


def codes(*shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def dequantize(
    kind: str = "int8", *, of: torch.Tensor | None = None, block: tuple[int, int] = (-1, -1), **more: Any
) -> torch.fx.Node:
    scale = torch.ones(()) if block == (-1, -1) else torch.ones(1, 8)
    value = torch.zeros(6, 8, dtype=more.pop("dtype", HALF))
    given = codes(6, 8) if of is None else of
    return node(operators.dequantize.default, value, given, scale, kind, [*block], value.dtype, **more)


def fake_quantize(kind: str = "fp8", dtype: torch.dtype = HALF, **more: Any) -> torch.fx.Node:
    value = torch.zeros(6, 8, dtype=dtype)
    return node(operators.fake_quantize.default, value, value, torch.ones(()), kind, [-1, -1], **more)


def blocks(*shape: int, size: int = 16) -> torch.fx.Node:
    value = torch.zeros(shape, dtype=HALF)
    return node(operators.fake_quantize_blocks.default, value, value, torch.ones(()), "fp4", size)


Case = tuple[Callable[..., Any], Callable[[], torch.fx.Node], str]
REFUSED: dict[str, Case] = {
    "computed codes": (
        quantized.check_dequantize,
        lambda: dequantize(computed=(0,)),
        "the quantized values are computed",
    ),
    "an odd row": (quantized.check_dequantize, lambda: dequantize("int4"), "a row has an odd number of int4 values"),
    "ragged blocks": (
        quantized.check_dequantize,
        lambda: dequantize(block=(4, 1)),
        "the block size 4 does not divide dim 0",
    ),
    "float64": (quantized.check_dequantize, lambda: dequantize(dtype=torch.float64), "the tensor is torch.float64"),
    "a computed scale": (quantized.check_fake_quantize, lambda: fake_quantize(computed=(1,)), "scale is computed"),
    "float64 again": (
        quantized.check_fake_quantize,
        lambda: fake_quantize(dtype=torch.float64),
        "the tensor is torch.float64",
    ),
    "a rank of 4": (quantized.check_block_quantization, lambda: blocks(2, 2, 2, 16), "rank is 4"),
    "a ragged row": (quantized.check_block_quantization, lambda: blocks(4, 24), "does not divide the last dim, 24"),
}


@pytest.fixture
def builds_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a TensorRT that builds quantized networks: 1.4, which the tests run with, refuses them all."""
    monkeypatch.setattr(quantized, "CAPABILITIES", attrs.evolve(quantized.CAPABILITIES, quantization=True))


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("builds_quantized")
def test_what_is_refused_says_why(name: str) -> None:
    validator, make, says = REFUSED[name]
    verdict = validator(make(), NEWEST)
    assert not verdict and says in verdict.reason


@pytest.mark.usefixtures("builds_quantized")
def test_what_is_within_the_limits_is_taken() -> None:
    assert quantized.check_dequantize(dequantize(), NEWEST) is True
    assert (
        quantized.check_dequantize(dequantize("int4", of=codes(6, 4, dtype=torch.uint8), block=(2, 1)), NEWEST) is True
    )
    assert quantized.check_fake_quantize(fake_quantize(), NEWEST) is True
    assert quantized.check_block_quantization(blocks(4, 32), NEWEST) is True


@pytest.mark.usefixtures("builds_quantized")
def test_fp4_is_for_gpus_that_have_it() -> None:
    refused = quantized.check_block_quantization(
        blocks(4, 32), CompilationSettings(compute_capabilities=("8.9", "12.0"))
    )
    assert not refused and "8.9 is requested" in refused.reason and "12.0" in refused.hint
    refused = quantized.check_block_quantization(blocks(4, 32), CompilationSettings())
    assert not refused and "by default" in refused.reason


def test_a_tensorrt_that_builds_none_names_the_version_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "CAPABILITIES", attrs.evolve(quantized.CAPABILITIES, quantization=False))
    refused = quantized.check_fake_quantize(fake_quantize(), NEWEST)
    assert not refused and "does not support quantized networks" in refused.reason and ">=1.6.1" in refused.hint


def test_every_reason_is_here() -> None:
    """`tests/converters/test_limits.py` leaves this family to us."""
    source = ast.parse(Path(quantized.__file__).read_text(encoding="utf-8"))
    stated = [n for n in ast.walk(source) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "Rejection"]
    assert len(stated) == len(REFUSED) - 1 + 2  # two share one; FP4's, and that of versions


class Convolved(torch.nn.Module):
    """A convolution whose input and weight are INT8."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 4, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the codes stand for, convolved; the input is reshaped in between."""
        codes = torch.fake_quantize_per_tensor_affine(x, 0.03125, 0, -128, 127)
        weight = torch.fake_quantize_per_tensor_affine(self.weight, 0.02, 0, -128, 127)
        return torch.nn.functional.conv2d(codes.reshape(2, 4, 8, 8), weight)


@pytest.mark.parametrize("able", [False, True])
def test_convolutions_of_codes_by_codes_are_pairs_where_tensorrt_builds_them(
    able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = attrs.evolve(quantized.CAPABILITIES, quantization=True, code_convolutions=able)
    monkeypatch.setattr(quantized, "CAPABILITIES", mine)
    model, x = Convolved().eval(), 3 * torch.randn(2, 4, 64)
    compiled = COMPILE(model, args=(x,))
    kinds = compiled.networks[0].kinds()
    assert (kinds.get("QUANTIZE", 0), kinds["DEQUANTIZE"]) == ((1, 2) if able else (0, 1))
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


class ConvolvedFloat8(torch.nn.Module):
    """A convolution whose input and weight are FP8, with one scale each."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
        self.layer = kind(4, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the codes stand for, convolved."""
        codes = torch.ops.tensorrt.quantize_op(x, torch.tensor(5.0), 8, 4, False, False)
        weight = torch.ops.tensorrt.quantize_op(self.layer.weight, torch.tensor(0.5), 8, 4, False, False)
        kind = torch.nn.functional
        convolve = kind.conv_transpose2d if isinstance(self.layer, torch.nn.ConvTranspose2d) else kind.conv2d
        return convolve(codes, weight, self.layer.bias)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_convolution_of_float8_has_a_scale_for_each_channel_where_tensorrt_forgets_one_for_all(
    keeps: bool, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    define_missing()
    mine = attrs.evolve(quantized.CAPABILITIES, quantization=True, code_convolutions=keeps)
    monkeypatch.setattr(quantized, "CAPABILITIES", mine)
    monkeypatch.setattr(quantized_layout, "CAPABILITIES", mine)
    model, x = ConvolvedFloat8(transposed).eval(), torch.randn(2, 4, 8, 8)
    compiled = COMPILE(model, args=(x,))
    makers = {tensor.name: layer for layer in compiled.networks[0].layers for tensor in layer.outputs}
    found = [layer.inputs for layer in compiled.networks[0].layers if layer.kind == "DEQUANTIZE"]
    [scales] = [makers[str(ins[1])].outputs[0].shape for ins in found if makers[str(ins[0])].kind == "CONSTANT"]
    assert scales == (() if keeps else model.layer.weight.shape[:1])
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not CAPABILITIES.quantization, reason="TensorRT-RTX builds quantized networks from 1.6 on")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_convolutions_of_codes_by_codes_build(dtype: torch.dtype) -> None:
    """RTX 1.6 has no kernel for them, and ended the build with an internal error."""
    x = torch.randn(2, 4, 64).to(dtype)
    compiled = pipeline.default(require_full_compilation=True)(Convolved().eval().to(dtype), args=(x,))
    assert compiled.engines[0].nbytes > 0
