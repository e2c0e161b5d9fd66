"""Convolution, deconvolution, pooling, resize and grid sample, in every padding and interpolation mode."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.trt import trt
from tests.runtime.reference_networks import Net, computed

F = torch.nn.functional
MODES = list(trt.PaddingMode.__members__)


def windowed(layer: Any, **settings: Any) -> Any:
    for name, value in settings.items():
        setattr(layer, name, value)
    return layer


def convolved(
    x: torch.Tensor, kernel: torch.Tensor, bias: Any = None, transposed: bool = False, **settings: Any
) -> Any:
    groups = settings.get("num_groups", 1)
    maps = kernel.shape[1] * groups if transposed else kernel.shape[0]

    def add(net: Net, source: Any) -> Any:
        make = net.net.add_deconvolution_nd if transposed else net.net.add_convolution_nd
        weights = [net.weight(value.flatten()) for value in (kernel, bias) if value is not None]
        return windowed(make(source, maps, tuple(kernel.shape[2:]), *weights), **settings)

    return computed(add, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@given(stride=st.integers(1, 3), dilation=st.integers(1, 2), groups=st.sampled_from((1, 2)), pad=st.integers(0, 2))
def test_convolution(dtype: torch.dtype, stride: int, dilation: int, groups: int, pad: int) -> None:
    x, bias = torch.randn(2, 4, 9, 8).to(dtype), torch.randn(6).to(dtype)
    kernel = torch.randn(6, 4 // groups, 3, 2).to(dtype)
    settings = {"stride_nd": (stride, 1), "dilation_nd": (1, dilation), "padding_nd": (pad, 0), "num_groups": groups}
    expected = F.conv2d(x.double(), kernel.double(), bias.double(), (stride, 1), (pad, 0), (1, dilation), groups)
    torch.testing.assert_close(convolved(x, kernel, bias, **settings), expected.to(dtype), rtol=None, atol=None)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_deconvolution(groups: int, stride: int) -> None:
    x, kernel, bias = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 2), torch.randn(3 * groups)
    settings = {"stride_nd": (stride, 1), "dilation_nd": (2, 1), "num_groups": groups, "pre_padding": (1, 0)}
    full = F.conv_transpose2d(x, kernel, bias, (stride, 1), 0, 0, groups, (2, 1))
    torch.testing.assert_close(convolved(x, kernel, bias, transposed=True, **settings), full[:, :, 1:])


def test_three_dimensions_and_leading_batches() -> None:
    x, kernel = torch.randn(1, 2, 5, 6, 7), torch.randn(3, 2, 2, 3, 2)
    torch.testing.assert_close(convolved(x, kernel), F.conv3d(x, kernel))
    flat = torch.randn(4, 5, 3, 3)
    torch.testing.assert_close(convolved(x, flat)[0], F.conv2d(x[0], flat))


def test_kernel_and_bias_as_inputs() -> None:
    def add(net: Net, source: Any, kernel: Any, bias: Any) -> Any:
        layer = net.net.add_convolution_nd(source, 3, (2, 2), trt.Weights())
        layer.set_input(1, kernel)
        layer.set_input(2, bias)
        return layer

    x, kernel, bias = torch.randn(1, 2, 5, 6), torch.randn(3, 2, 2, 2), torch.randn(3)
    torch.testing.assert_close(computed(add, x, kernel, bias), F.conv2d(x, kernel, bias))


@pytest.mark.parametrize("mode", MODES)
@given(size=st.integers(5, 9), extent=st.integers(1, 4), stride=st.integers(1, 3), data=st.data())
def test_every_padding_mode_has_tensorrts_size(mode: str, size: int, extent: int, stride: int, data: Any) -> None:
    """The reference compares each result with the shape that TensorRT infers, so that running is the test."""
    pads = [data.draw(st.integers(0, extent - 1)) for _ in range(2)]
    settings = {
        "stride_nd": (stride, 1),
        "pre_padding": (pads[0], 0),
        "post_padding": (pads[1], 0),
        "padding_mode": trt.PaddingMode.__members__[mode],
    }
    x = torch.randn(1, 1, size, 3)
    for transposed in (False, True):
        convolved(x, torch.randn(1, 1, extent, 1), transposed=transposed, **settings)


def test_same_padding_puts_the_odd_one_where_it_says() -> None:
    x, kernel = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 4, 1), torch.ones(1, 1, 2, 1)
    upper, lower = (
        convolved(x, kernel, padding_mode=trt.PaddingMode.__members__[mode]).flatten().tolist()
        for mode in ("SAME_UPPER", "SAME_LOWER")
    )
    assert (upper, lower) == ([3, 5, 7, 4], [1, 3, 5, 7])
    up, down = (
        convolved(x, kernel, transposed=True, padding_mode=trt.PaddingMode.__members__[mode]).flatten().tolist()
        for mode in ("SAME_UPPER", "SAME_LOWER")
    )
    assert (up, down) == ([1, 3, 5, 7], [3, 5, 7, 4])


def pooled(x: torch.Tensor, kind: str, window: Sequence[int], **settings: Any) -> torch.Tensor:
    operation = trt.PoolingType.__members__[kind]
    return computed(lambda n, y: windowed(n.net.add_pooling_nd(y, operation, tuple(window)), **settings), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("counting", [False, True])
@given(
    size=st.integers(4, 9), extent=st.integers(2, 3), stride=st.integers(1, 3), up=st.booleans(), pad=st.integers(0, 1)
)
def test_pooling(dtype: torch.dtype, counting: bool, size: int, extent: int, stride: int, up: bool, pad: int) -> None:
    x = torch.randn(2, 3, size, 5).to(dtype)
    arguments = ((extent, 2), (stride, 1), (pad, 0))
    last = (-(-(size + 2 * pad - extent) // stride)) * stride
    up = up and last < size + pad  # torch drops a window that starts in the padding, TensorRT keeps it
    settings = {
        "stride_nd": (stride, 1),
        "padding_nd": (pad, 0),
        "padding_mode": trt.PaddingMode.EXPLICIT_ROUND_UP if up else trt.PaddingMode.EXPLICIT_ROUND_DOWN,
    }
    largest = F.max_pool2d(x.float(), *arguments, ceil_mode=up)
    torch.testing.assert_close(pooled(x, "MAX", (extent, 2), **settings), largest.to(dtype))
    if not up or not counting or last + extent <= size + 2 * pad:
        average = F.avg_pool2d(x.double(), *arguments, ceil_mode=up, count_include_pad=counting)
        settings["average_count_excludes_padding"] = not counting
        torch.testing.assert_close(pooled(x, "AVERAGE", (extent, 2), **settings), average.to(dtype))


def test_pooling_blends_and_has_three_dimensions() -> None:
    x = torch.randn(1, 2, 4, 5, 6)
    largest, average = F.max_pool3d(x, 2, 1), F.avg_pool3d(x, 2, 1)
    torch.testing.assert_close(pooled(x, "MAX", (2, 2, 2)), largest)
    blend = pooled(x, "MAX_AVERAGE_BLEND", (2, 2, 2), blend_factor=0.25)
    torch.testing.assert_close(blend, 0.75 * largest + 0.25 * average)


def resized(x: torch.Tensor, mode: str, place: str, **settings: Any) -> torch.Tensor:
    def add(net: Net, source: Any, *shape: Any) -> Any:
        layer = windowed(net.net.add_resize(source), **settings)
        layer.resize_mode = trt.InterpolationMode.__members__[mode]
        layer.coordinate_transformation = trt.ResizeCoordinateTransformation.__members__[place]
        return layer

    return computed(add, x)


TORCH = [
    ("NEAREST", "ASYMMETRIC", "nearest", None),
    ("LINEAR", "HALF_PIXEL", "bilinear", False),
    ("LINEAR", "ALIGN_CORNERS", "bilinear", True),
    ("CUBIC", "HALF_PIXEL", "bicubic", False),
    ("CUBIC", "ALIGN_CORNERS", "bicubic", True),
]


@pytest.mark.parametrize(("mode", "place", "torchs", "corners"), TORCH)
@given(height=st.integers(1, 9), width=st.integers(1, 9))
def test_resize_to_a_shape(mode: str, place: str, torchs: str, corners: Any, height: int, width: int) -> None:
    x = torch.randn(1, 2, 5, 4)
    expected = F.interpolate(x, (height, width), mode=torchs, align_corners=corners)
    result = resized(x, mode, place, shape=(1, 2, height, width))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mode", "place", "torchs", "corners"), [row for row in TORCH if row[3] is not True])
def test_resize_by_scales_places_elements_by_them(mode: str, place: str, torchs: str, corners: Any) -> None:
    x, scale = torch.randn(1, 2, 5, 4), (1.5, 2.25)
    result = resized(x, mode, place, scales=[1, 1, *scale])
    expected = F.interpolate(x, scale_factor=scale, mode=torchs, align_corners=corners, recompute_scale_factor=False)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("HALF_UP", [0, 1, 1, 2, 2, 2]),
        ("HALF_DOWN", [0, 0, 1, 1, 2, 2]),
        ("FLOOR", [0, 0, 1, 1, 2, 2]),
        ("CEIL", [0, 1, 1, 2, 2, 2]),
    ],
)
def test_resize_rounds_ties_as_told(rounding: str, expected: list[int]) -> None:
    """Twice as many elements lie at 0, 0.5, 1, 1.5, 2 and 2.5, which is beyond the last."""
    x = torch.arange(3.0).reshape(1, 1, 1, 3)
    mode = trt.ResizeRoundMode.__members__[rounding]
    result = resized(x, "NEAREST", "ASYMMETRIC", scales=[1, 1, 1, 2], nearest_rounding=mode)
    assert result.flatten().tolist() == expected


def test_resize_to_one_pixel_selects_the_upper_left() -> None:
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    result = resized(x, "LINEAR", "HALF_PIXEL", shape=(1, 1, 1, 1), selector_for_single_pixel=trt.ResizeSelector.UPPER)
    assert result.item() == 0.0
    assert resized(x, "LINEAR", "HALF_PIXEL", shape=(1, 1, 1, 1)).item() == 4.0


def test_resize_leaving_out_what_lies_outside_keeps_a_constant() -> None:
    x = torch.full((1, 1, 3, 4), 2.5)
    result = resized(x, "CUBIC", "HALF_PIXEL", shape=(1, 1, 7, 5), exclude_outside=True)
    torch.testing.assert_close(result, torch.full((1, 1, 7, 5), 2.5))


def test_resize_to_a_shape_that_is_an_input() -> None:
    net = Net()
    layer = net.net.add_resize(net.input(x := torch.randn(1, 2, 3, 4)))
    layer.set_input(1, net.input(torch.tensor([1, 2, 6, 8])))
    (result,) = net.output(layer.get_output(0)).run()
    assert torch.equal(result, F.interpolate(x, (6, 8)))


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("border", ["FILL", "CLAMP", "REFLECT"])
@pytest.mark.parametrize("mode", ["NEAREST", "LINEAR", "CUBIC"])
def test_grid_sample(mode: str, border: str, corners: bool) -> None:
    x, grid = torch.randn(1, 2, 5, 6), torch.rand(1, 3, 4, 2) * 4 - 2
    names = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}
    borders = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}

    def add(net: Net, source: Any, places: Any) -> Any:
        layer = net.net.add_grid_sample(source, places)
        layer.interpolation_mode = trt.InterpolationMode.__members__[mode]
        layer.sample_mode, layer.align_corners = trt.SampleMode.__members__[border], corners
        return layer

    expected = F.grid_sample(x, grid, names[mode], borders[border], corners)
    torch.testing.assert_close(computed(add, x, grid), expected)
