"""Reductions, sorting, softmax, running sums, normalization."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.trt import trt
from tests.runtime.reference_networks import Net, computed

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
F = torch.nn.functional


def mask(*axes: int) -> int:
    return sum(1 << axis for axis in axes)


def reduced(op: str, x: torch.Tensor, axes: tuple[int, ...], keep: bool = False) -> torch.Tensor:
    operation = trt.ReduceOperation.__members__[op]
    return computed(lambda n, y: n.net.add_reduce(y, operation, mask(*axes), keep), x)


REDUCE = {
    "SUM": lambda x, axes, keep: x.sum(axes, keep),
    "AVG": lambda x, axes, keep: x.mean(axes, keep),
    "MAX": lambda x, axes, keep: x.amax(axes, keep),
    "MIN": lambda x, axes, keep: x.amin(axes, keep),
}


@pytest.mark.parametrize("op", REDUCE)
@given(axes=st.sets(st.integers(0, 2), min_size=1), keep=st.booleans(), dtype=st.sampled_from(FLOATS))
def test_reductions_accumulate_in_float32(op: str, axes: set[int], keep: bool, dtype: torch.dtype) -> None:
    x = (torch.rand(3, 4, 50) + 0.5).to(dtype)
    expected = REDUCE[op](x.double(), tuple(axes), keep).to(dtype)
    torch.testing.assert_close(reduced(op, x, tuple(sorted(axes)), keep), expected)


def test_a_long_sum_of_halves_is_rounded_once() -> None:
    assert reduced("SUM", torch.full((4096,), 0.25, dtype=torch.float16), (0,)).item() == 1024.0


def test_products_and_integers() -> None:
    x = torch.tensor([[2, -3], [7, 4]])
    assert reduced("PROD", x, (0, 1)).item() == -168
    assert reduced("SUM", x, (1,)).tolist() == [-1, 11]
    assert reduced("AVG", x, (1,)).tolist() == [0, 5]
    assert reduced("MAX", torch.tensor([2**62, 2**62 + 1]), (0,)).item() == 2**62 + 1


@pytest.mark.parametrize(
    ("op", "float_value", "integer"),
    [
        ("SUM", 0.0, 0),
        ("PROD", 1.0, 1),
        ("MAX", float("-inf"), -(2**31)),
        ("MIN", float("inf"), 2**31 - 1),
        ("AVG", float("nan"), 0),
    ],
)
def test_reductions_of_nothing(op: str, float_value: float, integer: int) -> None:
    torch.testing.assert_close(reduced(op, torch.ones(2, 0), (1,)), torch.full((2,), float_value), equal_nan=True)
    assert reduced(op, torch.ones(2, 0, dtype=torch.int32), (1,)).tolist() == [integer] * 2


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64], ids=str)
def test_top_k(largest: bool, axis: int, dtype: torch.dtype) -> None:
    x = torch.randperm(60).reshape(3, 4, 5).to(dtype)
    net = Net()
    operation = trt.TopKOperation.MAX if largest else trt.TopKOperation.MIN
    layer = net.net.add_topk(net.input(x), operation, 2, mask(axis))
    values, indices = net.output(layer.get_output(0), layer.get_output(1)).run()
    expected = torch.topk(x, 2, axis, largest)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices.long(), expected.indices)


def test_top_k_of_an_input() -> None:
    net = Net()
    layer = net.net.add_topk(net.input(torch.tensor([[3.0, 9.0, 5.0]])), trt.TopKOperation.MAX, 1, mask(1))
    layer.set_input(1, net.input(torch.tensor(2, dtype=torch.int32)))
    assert net.output(layer.get_output(0)).run()[0].tolist() == [[9.0, 5.0]]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis: int, dtype: torch.dtype) -> None:
    def add(net: Net, source: Any) -> Any:
        layer = net.net.add_softmax(source)
        layer.axes = mask(axis)
        return layer

    x = torch.randn(2, 3, 40).to(dtype) * 5
    torch.testing.assert_close(computed(add, x), torch.softmax(x.double(), axis).to(dtype))


def test_ragged_softmax() -> None:
    x, lengths = torch.randn(1, 3, 4), torch.tensor([[[1], [2], [4]]], dtype=torch.int32)
    result = computed(lambda n, y, size: n.net.add_ragged_softmax(y, size), x, lengths)
    for row, size in enumerate((1, 2, 4)):
        torch.testing.assert_close(result[0, row, :size], torch.softmax(x[0, row, :size], -1))
        assert not result[0, row, size:].any()


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64], ids=str)
def test_cumulative_sums(exclusive: bool, reverse: bool, dtype: torch.dtype) -> None:
    x = torch.randint(-4, 5, (2, 5, 3)).to(dtype)

    def add(net: Net, source: Any) -> Any:
        axis = net.constant(torch.tensor(1, dtype=torch.int32))
        return net.net.add_cumulative(source, axis, trt.CumulativeOperation.SUM, exclusive, reverse)

    forward = x.flip(1) if reverse else x
    expected = forward.cumsum(1) - (forward if exclusive else 0)
    assert torch.equal(computed(add, x), (expected.flip(1) if reverse else expected).to(dtype))


def test_cumulative_sum_of_nothing() -> None:
    def add(net: Net, source: Any) -> Any:
        axis = net.constant(torch.tensor(0, dtype=torch.int32))
        return net.net.add_cumulative(source, axis, trt.CumulativeOperation.SUM, True, False)

    assert computed(add, torch.empty(0, 3)).shape == (0, 3)


def test_non_zero_gives_a_column_a_place() -> None:
    x = torch.tensor([[0, 2], [3, 0]])
    assert computed(lambda n, y: n.net.add_non_zero(y), x).tolist() == [[0, 1], [1, 0]]


def normalized(x: Any, scale: Any, bias: Any, axes: tuple[int, ...], groups: int = 1, v2: bool = True) -> Any:
    def add(net: Net, *tensors: Any) -> Any:
        make = net.net.add_normalization_v2 if v2 else net.net.add_normalization
        layer = make(*tensors, mask(*axes))
        layer.num_groups, layer.epsilon = groups, 1e-3
        return layer

    return computed(add, x, scale, bias)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("v2", [False, True])
def test_layer_norm(dtype: torch.dtype, v2: bool) -> None:
    x, scale, bias = (torch.randn(shape).to(dtype) for shape in ((2, 5, 64), (1, 1, 64), (1, 1, 64)))
    expected = F.layer_norm(x.double(), (64,), scale.double().reshape(-1), bias.double().reshape(-1), 1e-3)
    torch.testing.assert_close(normalized(x, scale, bias, (2,), v2=v2), expected.to(dtype))


@pytest.mark.parametrize("v2", [False, True])
def test_instance_norm(v2: bool) -> None:
    x, scale, bias = torch.randn(2, 6, 4, 5), torch.randn(1, 6, 1, 1), torch.randn(1, 6, 1, 1)
    expected = F.instance_norm(x, weight=scale.reshape(-1), bias=bias.reshape(-1), eps=1e-3)
    torch.testing.assert_close(normalized(x, scale, bias, (2, 3), v2=v2), expected, rtol=1e-4, atol=1e-5)


def test_group_norm_scales_channels_in_v2_and_groups_in_v1() -> None:
    x, channels, groups = torch.randn(2, 6, 4, 5), torch.randn(1, 6, 1, 1), torch.randn(1, 2, 1, 1)
    plain = F.group_norm(x, 2, eps=1e-3)
    torch.testing.assert_close(normalized(x, channels, channels, (2, 3), 2), plain * channels + channels)
    spread = groups.repeat_interleave(3, 1)
    torch.testing.assert_close(normalized(x, groups, groups, (2, 3), 2, v2=False), plain * spread + spread)


def test_lrn() -> None:
    x = torch.randn(2, 7, 3, 4)
    result = computed(lambda n, y: n.net.add_lrn(y, 3, 0.5, 0.75, 2.0), x)
    torch.testing.assert_close(result, F.local_response_norm(x, 3, 0.5, 0.75, 2.0))


@pytest.mark.parametrize("form", ["CORNER_PAIRS", "CENTER_SIZES"])
def test_non_maximum_suppression(form: str) -> None:
    corners = torch.tensor([[[0, 0, 2, 2], [0, 0, 2, 1.8], [5, 5, 6, 6]]])
    centres = torch.cat([(corners[..., :2] + corners[..., 2:]) / 2, corners[..., 2:] - corners[..., :2]], -1)
    scores = torch.tensor([[[0.5], [0.9], [0.7]]])
    net = Net()
    most = net.constant(torch.tensor(3, dtype=torch.int32))
    boxes = net.input(corners if form == "CORNER_PAIRS" else centres)
    layer = net.net.add_nms(boxes, net.input(scores), most)
    layer.bounding_box_format = trt.BoundingBoxFormat.__members__[form]
    layer.set_input(3, net.constant(torch.tensor(0.5)))
    rows, count = net.output(layer.get_output(0), layer.get_output(1)).run()
    assert (rows.tolist(), count.item()) == ([[0, 0, 1], [0, 0, 2]], 2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_reduction_keeps_its_dtype(dtype: torch.dtype) -> None:
    assert reduced("SUM", torch.ones(2, 3).to(dtype), (0,), True).dtype == dtype
