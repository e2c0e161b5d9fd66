"""What codes and numbers are: beside torch's float8, torch's own quantizers and torchao's, bit by bit."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.aten import quantized as q
from pipeline.network.description import Layer, Tensor
from pipeline.runtime.reference.kinds import KINDS
from pipeline.runtime.reference.quantized import round_to_dtype, unpack

SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 127.5, -128.5, 448.0, 464.0, 1e6, -1e6, 1e-9, 3.0]
numbers = st.lists(st.one_of(st.sampled_from(SPECIAL), st.floats(-600, 600, width=32)), min_size=32, max_size=64)


def row(kind: str, inputs: int, dtype: str, shape: tuple[int, ...], axis: int = -1, **more: Any) -> Layer:
    """A layer of one output."""
    names = tuple(f"in{i}" for i in range(inputs))
    return Layer(kind, "layer", names, (Tensor("out", dtype, shape),), (("axis", axis), *more.items()))


@given(numbers)
def test_fp8_is_torchs_float8_that_saturates(values: list[float]) -> None:
    x = torch.tensor(values)
    wanted = x.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(q.round_to_type(x, "fp8").view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(round_to_dtype(x, "float8_e4m3fn").view(torch.uint8), wanted.view(torch.uint8))


@given(numbers, st.sampled_from([0.25, 1.0, 0.1, 3.7]))
def test_int8_rounds_ties_to_even_and_saturates(values: list[float], scale: float) -> None:
    x = torch.tensor(values)
    (got,) = KINDS["QUANTIZE"](row("QUANTIZE", 2, "int8", tuple(x.shape)), (x, torch.tensor(scale)), {})
    assert torch.equal(got, torch.round(x * (1 / torch.tensor(scale))).clamp(-128, 127).to(torch.int8))
    divided = torch.round(x / scale).clamp(-128, 127).to(torch.int8)
    assert torch.equal(q.quantize(x, torch.tensor(scale), "int8", [-1]), divided)


@given(numbers, st.sampled_from([0.25, 0.1, 3.7]))
def test_reciprocals_are_torchs_quantizers_bit_by_bit(values: list[float], scale: float) -> None:
    x = torch.tensor(values)
    got = q.quantize(x, torch.tensor(scale), "int8", [-1], True)
    wanted = torch.fake_quantize_per_tensor_affine(
        x, torch.tensor(scale), torch.tensor(0, dtype=torch.int32), -128, 127
    )
    assert torch.equal(q.dequantize(got, torch.tensor(scale), "int8", [-1], torch.float32), wanted)


def test_layers_round_as_torchs_quantizers_between_two_codes() -> None:
    """A quotient by the scale and a product with its reciprocal fall on two sides of a tie for some of these."""
    scale = torch.tensor(0.02)
    ties = (torch.arange(-120, 120) + 0.5) * scale
    x = torch.stack([ties, ties.nextafter(ties + 1), ties.nextafter(ties - 1)])
    zero = torch.tensor(0, dtype=torch.int32)
    wanted = torch.fake_quantize_per_tensor_affine(x, scale, zero, -128, 127)
    (codes,) = KINDS["QUANTIZE"](row("QUANTIZE", 2, "int8", tuple(x.shape)), (x, scale), {})
    assert torch.equal(codes.float() * scale, wanted)
    assert torch.equal(q.fake_quantize(x, scale, "int8", [-1, -1]), wanted)
    assert not torch.equal(
        q.dequantize(q.quantize(x, scale, "int8", [-1, -1]), scale, "int8", [-1, -1], x.dtype), wanted
    )


@given(numbers)
def test_fp4_is_the_nearest_of_its_numbers(values: list[float]) -> None:
    x = torch.tensor(values) / 50
    got = q.codes_to_float32(q.round_to_type(x, "fp4"), "fp4")
    levels = torch.tensor([*q.E2M1, *(-v for v in q.E2M1)])
    least = (x[:, None] - levels).abs().amin(1)
    assert torch.equal((x - got).abs(), least)
    assert torch.equal(round_to_dtype(x, "float4_e2m1fn_x2"), got)


def test_fp4_ties_go_to_the_even_code() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -2.5, -5.0])
    wanted = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -0.0, -2.0, -4.0])
    assert torch.equal(q.codes_to_float32(q.round_to_type(ties, "fp4"), "fp4"), wanted)


@given(st.lists(st.integers(-8, 7), min_size=2, max_size=32).filter(lambda values: len(values) % 2 == 0))
def test_codes_of_4_bits_are_packed(values: list[int]) -> None:
    codes = torch.tensor(values, dtype=torch.int8)
    packed = q.pack(codes, "int4")
    assert packed.numel() * 2 == codes.numel()
    assert torch.equal(q.unpack(packed, "int4"), codes)
    assert torch.equal(unpack(packed, "int4"), codes)


def test_a_code_beyond_4_bits_is_an_error() -> None:
    with pytest.raises(ValueError, match="is outside int4's range"):
        q.pack(torch.tensor([8, 0], dtype=torch.int8), "int4")
    with pytest.raises(ValueError, match="overflows int8"):
        q.centered(torch.tensor([255]), torch.tensor(3), "int8", [-1])


@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from([2, 3, 4]))
def test_blocks_that_do_not_divide_are_ragged_at_the_end(rows: int, columns: int, length: int) -> None:
    count = -(-columns // length)
    scale = torch.arange(1.0, rows * count + 1).reshape(rows, count)
    each = q.expand_blocks(scale, (rows, columns), (1, length)).broadcast_to(rows, columns)
    for i in range(rows):
        for j in range(columns):
            assert each[i, j] == scale[i, j // length]


def test_torchaos_affine_is_bit_exact() -> None:
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    x = torch.randn(8, 64)
    scale, zero = torch.rand(8, 2) * 0.05 + 0.01, torch.zeros(8, 2, dtype=torch.int32)
    codes = primitives.quantize_affine(x, (1, 32), scale, zero, torch.int8, -8, 7)
    assert torch.equal(q.quantize(x, scale, "int4", [1, 32], True), codes)
    wanted = primitives.dequantize_affine(codes, (1, 32), scale, zero, torch.int8, -8, 7)
    assert torch.equal(q.dequantize(codes, scale, "int4", [1, 32], torch.float32), wanted)


@pytest.mark.parametrize("kind", ["int8", "fp8", "fp4"])
def test_scales_of_zero_give_zeros(kind: str) -> None:
    x = torch.randn(2, 4)
    codes = q.quantize(x, torch.tensor([[0.0], [1.0]]), kind, [1, -1])
    assert not q.dequantize(codes, torch.tensor([[0.0], [1.0]]), kind, [1, -1], torch.float32)[0].any()


def test_nothing_is_nothing() -> None:
    empty = torch.empty(0, 4)
    assert q.fake_quantize(empty, torch.tensor(0.1), "int8", [-1, -1]).shape == (0, 4)


@pytest.mark.parametrize(("kind", "size", "scale"), [("fp4", 16, 0.01), ("fp8", 32, None)])
def test_scales_of_blocks_follow_from_the_numbers(kind: str, size: int, scale: float | None) -> None:
    x = torch.randn(4, 64) * torch.logspace(-3, 1, 4)[:, None]
    x[0] = 0
    whole = None if scale is None else torch.tensor(scale)
    made = q.fake_quantize_blocks(x, whole, kind, size)
    codes, scales = q.block_codes(x, whole, kind, size)
    assert scales.dtype == (torch.float8_e8m0fnu if scale is None else torch.float8_e4m3fn)
    assert not made[0].any()
    assert float((made - x)[1:].norm() / x[1:].norm()) < (0.2 if kind == "fp4" else 0.05)
    layer = Layer(
        "DYNAMIC_QUANTIZE",
        "layer",
        ("x", "scale"),
        (
            Tensor("codes", "float4_e2m1fn_x2" if kind == "fp4" else "float8_e4m3fn", (4, 64)),
            Tensor("scales", "float8_e8m0fnu" if scale is None else "float8_e4m3fn", (4, 64 // size)),
        ),
        (("axis", 1), ("block_size", size)),
    )
    found, of_found = KINDS["DYNAMIC_QUANTIZE"](layer, (x, whole), {})
    assert torch.equal(found.float(), q.codes_to_float32(codes, kind))
    assert torch.equal(of_found.view(torch.uint8), scales.view(torch.uint8))


def test_e8m0_scales_are_powers_of_two_that_hold_the_block() -> None:
    most = torch.tensor([448.0, 449.0, 1.0, 0.0, 1e-30])
    scales = q.block_scales(most, None, "fp8").float()
    assert scales.tolist()[:2] == [1.0, 2.0]
    assert bool((scales[:3] * 448 >= most[:3]).all())
