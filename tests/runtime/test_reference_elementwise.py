"""Element by element: each operation beside numpy or torch, in every dtype that TensorRT takes."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.runtime.reference import LayerError
from pipeline.trt import to_trt, trt
from tests.runtime.reference_networks import Net, computed

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64)
NUMBERS = st.lists(st.integers(-9, 9), min_size=1, max_size=6)


def elementwise(op: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    operation = trt.ElementWiseOperation.__members__[op]
    return computed(lambda n, x, y: n.net.add_elementwise(x, y, operation), a, b)


def unary(op: str, x: torch.Tensor) -> torch.Tensor:
    return computed(lambda n, y: n.net.add_unary(y, trt.UnaryOperation.__members__[op]), x)


BINARY = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "SUB": np.subtract,
    "EQUAL": np.equal,
    "GREATER": np.greater,
    "LESS": np.less,
}


@pytest.mark.parametrize("op", BINARY)
@given(left=NUMBERS, right=st.integers(-9, 9), dtype=st.sampled_from((*FLOATS, *INTEGERS)))
def test_binary_operations_broadcast(op: str, left: list[int], right: int, dtype: torch.dtype) -> None:
    a, b = torch.tensor([left]).to(dtype), torch.tensor([[right], [1]]).to(dtype)
    expected = BINARY[op](a.double().numpy(), b.double().numpy())
    torch.testing.assert_close(elementwise(op, a, b).double(), torch.from_numpy(expected).double())


@given(left=NUMBERS, right=st.integers(-9, 9).filter(bool), dtype=st.sampled_from(INTEGERS))
def test_integers_divide_toward_zero_and_floor_divide_down(left: list[int], right: int, dtype: torch.dtype) -> None:
    a, b = torch.tensor(left, dtype=dtype), torch.tensor([right], dtype=dtype)
    assert elementwise("DIV", a, b).tolist() == [int(value / right) for value in left]
    assert elementwise("FLOOR_DIV", a, b).tolist() == [value // right for value in left]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_divide(dtype: torch.dtype) -> None:
    a, b = torch.tensor([7.0, -7.0, 1.0], dtype=dtype), torch.tensor([2.0, 2.0, 0.0], dtype=dtype)
    assert elementwise("DIV", a, b).tolist() == [3.5, -3.5, float("inf")]
    assert elementwise("FLOOR_DIV", a[:2], b[:2]).tolist() == [3.0, -4.0]


def test_powers() -> None:
    a, b = torch.tensor([-2.0, 2.0, -2.0]), torch.tensor([3.0, -1.0, 0.5])
    torch.testing.assert_close(elementwise("POW", a, b), torch.tensor([-8.0, 0.5, float("nan")]), equal_nan=True)
    integers = torch.tensor([3, 2, -1, -1, 1]), torch.tensor([4, -1, -3, -2, -5])
    assert elementwise("POW", *integers).tolist() == [81, 0, -1, 1, 1]


@pytest.mark.parametrize("op", ["MAX", "MIN"])
def test_maximum_and_minimum_keep_the_first_where_they_cannot_compare(op: str) -> None:
    """As TensorRT does (NVIDIA/TensorRT issue 4758); a converter that wants NaN must say so."""
    a, b = torch.tensor([float("nan"), 1.0]), torch.tensor([2.0, float("nan")])
    torch.testing.assert_close(elementwise(op, a, b), a, equal_nan=True)


@pytest.mark.parametrize(("op", "expected"), [("AND", [1, 0, 0, 0]), ("OR", [1, 1, 1, 0]), ("XOR", [0, 1, 1, 0])])
def test_logic(op: str, expected: list[int]) -> None:
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    assert elementwise(op, a, b).int().tolist() == expected


UNARY = {
    **{op: getattr(np, op.lower()) for op in ("EXP", "LOG", "SQRT", "ABS", "SIN", "COS", "TAN", "SINH", "COSH")},
    **{op: getattr(np, op.lower()) for op in ("CEIL", "FLOOR", "ISINF", "ISNAN")},
    **{f"A{op}": getattr(np, f"arc{op.lower()}") for op in ("SIN", "COS", "TAN", "SINH", "COSH", "TANH")},
    "RECIP": np.reciprocal,
    "NEG": np.negative,
    "SIGN": np.sign,
    "ROUND": np.rint,
    "ERF": lambda x: torch.erf(torch.from_numpy(x)).numpy(),
}


def test_every_unary_operation_is_tested() -> None:
    assert {*UNARY, "NOT"} == set(trt.UnaryOperation.__members__)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", UNARY)
def test_unary_operations_round_once(op: str, dtype: torch.dtype) -> None:
    special = [float("inf"), float("-inf"), float("nan"), 0.5, -2.5, 1.5, 0.0, -0.25]
    x = torch.tensor(special + torch.linspace(-3, 3, 31).tolist(), dtype=dtype)
    with np.errstate(all="ignore"):
        expected: NDArray[Any] = np.asarray(UNARY[op](x.double().numpy()))
    result = unary(op, x)
    assert result.dtype == (torch.bool if op in ("ISINF", "ISNAN") else dtype)
    torch.testing.assert_close(result, torch.from_numpy(expected).to(result.dtype), equal_nan=True)


def test_not_and_integers() -> None:
    assert unary("NOT", torch.tensor([True, False])).tolist() == [False, True]
    assert unary("NEG", torch.tensor([2**62, -3])).tolist() == [-(2**62), 3]
    assert unary("ABS", torch.tensor([-(2**62) - 1])).tolist() == [2**62 + 1]


F = torch.nn.functional
A, B = 0.25, 0.75
ACTIVATIONS = {
    "RELU": F.relu,
    "SIGMOID": torch.sigmoid,
    "TANH": torch.tanh,
    "LEAKY_RELU": lambda x: F.leaky_relu(x, A),
    "ELU": lambda x: F.elu(x, A),
    "SELU": lambda x: B * (x.clamp(min=0) + A * (x.clamp(max=0).exp() - 1)),
    "SOFTSIGN": F.softsign,
    "SOFTPLUS": lambda x: A * (1 + (B * x).exp()).log(),
    "CLIP": lambda x: x.clamp(A, B),
    "HARD_SIGMOID": lambda x: (A * x + B).clamp(0, 1),
    "SCALED_TANH": lambda x: A * torch.tanh(B * x),
    "THRESHOLDED_RELU": lambda x: F.threshold(x, A, 0),
    "GELU_ERF": F.gelu,
    "GELU_TANH": lambda x: F.gelu(x, approximate="tanh"),
}


def test_every_activation_is_tested() -> None:
    assert set(ACTIVATIONS) == set(trt.ActivationType.__members__)


def activation(op: str, x: torch.Tensor, alpha: float = A, beta: float = B) -> torch.Tensor:
    def add(net: Net, source: Any) -> Any:
        layer = net.net.add_activation(source, trt.ActivationType.__members__[op])
        layer.alpha, layer.beta = alpha, beta
        return layer

    return computed(add, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_activations_round_once(op: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-4, 4, 33).to(dtype)
    torch.testing.assert_close(activation(op, x), ACTIVATIONS[op](x.double()).to(dtype))


def test_softplus_does_not_overflow() -> None:
    assert activation("SOFTPLUS", torch.tensor([1000.0]), 1.0, 1.0).tolist() == [1000.0]


LIMITS = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int32: (-(2**31), 2**31 - 1),
    torch.int64: (-(2**63), 2**63 - 1),
}


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return computed(lambda n, y: n.net.add_cast(y, to_trt(dtype)), x)


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_floats_go_to_integers_toward_zero_and_stop_at_the_bounds(source: torch.dtype, dtype: torch.dtype) -> None:
    low, high = (0, -1) if dtype == torch.int8 else LIMITS[dtype]  # int8 is the low byte of the int32
    x = torch.tensor([2.75, -0.75, float("nan"), float("inf"), float("-inf")], dtype=source)
    assert cast(x, dtype).tolist() == [2, 0, low if dtype == torch.int64 else 0, high, low]


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_casts_agree_with_exact_arithmetic(values: list[float]) -> None:
    def exact(value: float) -> int:
        if value != value:
            return -(2**63)
        return max(-(2**63), min(2**63 - 1, int(max(-1e30, min(1e30, value)))))

    assert cast(torch.tensor(values), torch.int64).tolist() == [exact(value) for value in values]


def test_casts_between_the_rest() -> None:
    assert cast(torch.tensor([0.0, -0.5, float("nan")]), torch.bool).tolist() == [False, True, True]
    assert cast(torch.tensor([True, False]), torch.float16).tolist() == [1.0, 0.0]
    assert cast(torch.tensor([2**24 + 1]), torch.float32).tolist() == [2.0**24]
    assert cast(torch.tensor([1e5]), torch.float16).tolist() == [float("inf")]


def test_select_broadcasts() -> None:
    condition, a, b = torch.tensor([[True, False, True]]), torch.randn(2, 3), torch.randn(2, 1)
    chosen = computed(lambda n, c, x, y: n.net.add_select(c, x, y), condition, a, b)
    torch.testing.assert_close(chosen, torch.where(condition, a, b))


def test_parametric_relu_broadcasts() -> None:
    x, slope = torch.randn(2, 3, 4), torch.rand(1, 3, 1)
    result = computed(lambda n, y, s: n.net.add_parametric_relu(y, s), x, slope)
    torch.testing.assert_close(result, torch.where(x >= 0, x, slope * x))


@pytest.mark.parametrize(("mode", "shape"), [("UNIFORM", ()), ("CHANNEL", (3,)), ("ELEMENTWISE", (3, 4, 5))])
def test_scale(mode: str, shape: tuple[int, ...]) -> None:
    x, shift, factor, power = torch.rand(2, 3, 4, 5), *(torch.rand(shape) for _ in range(3))

    def add(net: Net, source: Any) -> Any:
        weights = [net.weight(value) for value in (shift, factor, power)]
        return net.net.add_scale(source, trt.ScaleMode.__members__[mode], *weights)

    spread = [value.reshape(3, 1, 1) if mode == "CHANNEL" else value for value in (shift, factor, power)]
    torch.testing.assert_close(computed(add, x), (x * spread[1] + spread[0]) ** spread[2])


def test_scale_takes_its_axis_and_its_defaults() -> None:
    x, factor = torch.rand(2, 3, 4, 5), torch.rand(4)

    def add(net: Net, source: Any) -> Any:
        return net.net.add_scale_nd(source, trt.ScaleMode.CHANNEL, trt.Weights(), net.weight(factor), trt.Weights(), 2)

    torch.testing.assert_close(computed(add, x), x * factor[:, None])


def quantized(x: torch.Tensor, scale: torch.Tensor, axis: int = -1, dtype: Any = trt.int8) -> torch.Tensor:
    def add(net: Net, source: Any) -> Any:
        layer = net.net.add_quantize(source, net.constant(scale), dtype)
        layer.axis = axis
        return layer

    return computed(add, x)


def test_quantization_rounds_to_even_and_clamps() -> None:
    x = torch.tensor([0.05, 0.15, 0.25, 99.0, -99.0])
    assert quantized(x, torch.tensor(0.1)).tolist() == [0, 2, 2, 127, -128]
    assert quantized(torch.ones(2, 2), torch.tensor([0.5, 0.25]), axis=0).tolist() == [[2, 2], [4, 4]]


def test_dequantization_by_axis_and_by_block() -> None:
    values = torch.randint(-128, 127, (4, 6), dtype=torch.int8)

    def dequantized(scale: torch.Tensor, axis: int) -> torch.Tensor:
        net = Net()
        layer = net.net.add_dequantize(net.constant(values), net.constant(scale), trt.float32)
        layer.axis = axis
        return net.output(layer.get_output(0)).run()[0]

    by_axis, by_block = torch.rand(6), torch.rand(2, 6)
    torch.testing.assert_close(dequantized(by_axis, 1), values * by_axis)
    torch.testing.assert_close(dequantized(by_block, 0), values * by_block.repeat_interleave(2, 0))


def test_integer_division_by_zero_is_zero_here() -> None:
    """TensorRT does not define it; the reference must not stop a program whose result is not used."""
    assert elementwise("DIV", torch.tensor([3]), torch.tensor([0])).tolist() == [0]


def test_errors_name_the_layer() -> None:
    def add(net: Net, condition: Any) -> Any:
        net.net.add_assertion(condition, "sizes differ").name = "check/sizes"
        return net.net.add_identity(condition)

    assert computed(add, torch.tensor([True])).tolist() == [True]
    with pytest.raises(LayerError, match="ASSERTION 'check/sizes': the network's assertion fails: sizes differ"):
        computed(add, torch.tensor([True, False]))
