"""Slice in every mode, gather and scatter, beside index arithmetic in Python."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.reference import LayerError
from pipeline.trt import trt
from tests.runtime.reference_networks import Net, computed


def sliced(x: torch.Tensor, start: Any, size: Any, stride: Any, mode: str = "STRICT_BOUNDS", fill: Any = None) -> Any:
    def add(net: Net, source: Any) -> Any:
        layer = net.net.add_slice(source, start, size, stride)
        layer.mode = trt.SampleMode.__members__[mode]
        if fill is not None:
            layer.set_input(4, net.constant(torch.tensor(fill, dtype=x.dtype)))
        return layer

    return computed(add, x)


def mirrored(index: int, length: int) -> int:
    """By walking: back and forth between the ends."""
    place, step = 0, 1
    for _ in range(abs(index)):
        if not 0 <= place + step < length:
            step = -step
        place += step if length > 1 else 0
    return place


MODES = {
    "WRAP": lambda index, length: index % length,
    "CLAMP": lambda index, length: min(max(index, 0), length - 1),
    "REFLECT": mirrored,
    "FILL": lambda index, length: index if 0 <= index < length else None,
}
SMALL = st.integers(-7, 7)


@pytest.mark.parametrize("mode", MODES)
@given(length=st.integers(1, 5), start=SMALL, size=st.integers(0, 9), stride=st.integers(-3, 3))
def test_places_outside(mode: str, length: int, start: int, size: int, stride: int) -> None:
    x = torch.arange(10.0, 10.0 + length)
    places = [MODES[mode](start + stride * i, length) for i in range(size)]
    expected = [-1.0 if place is None else 10.0 + place for place in places]
    assert sliced(x, (start,), (size,), (stride,), mode, -1.0 if mode == "FILL" else None).tolist() == expected


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_inside(shape: list[int], data: st.DataObject) -> None:
    x = torch.randn(shape)
    begin = [data.draw(st.integers(0, size - 1)) for size in shape]
    stride = [data.draw(st.sampled_from((1, 2, -1))) for _ in shape]
    count = [
        data.draw(st.integers(0, 1 + (first if step < 0 else (size - 1 - first) // step)))
        for size, first, step in zip(shape, begin, stride, strict=True)
    ]
    expected = x
    for axis, (first, number, step) in enumerate(zip(begin, count, stride, strict=True)):
        expected = expected.index_select(
            axis, torch.tensor([first + step * i for i in range(number)], dtype=torch.long)
        )
    assert torch.equal(sliced(x, begin, count, stride), expected)


def test_stride_zero_broadcasts() -> None:
    assert sliced(torch.tensor([[1, 2]]), (0, 0), (3, 2), (0, 1)).tolist() == [[1, 2]] * 3


def test_filling_from_nothing_and_with_the_default() -> None:
    assert sliced(torch.ones(0, 2), (0, 0), (2, 2), (1, 1), "FILL").tolist() == [[0, 0], [0, 0]]
    assert sliced(torch.tensor([True]), (0,), (2,), (1,), "FILL").tolist() == [True, False]


def dynamic(net: Net, source: Any, start: Any, size: Any, stride: Any) -> Any:
    layer = net.net.add_slice(source, (0, 0), (1, 1), (1, 1))
    for index, value in enumerate((start, size, stride), 1):
        layer.set_input(index, value)
    return layer


def test_start_size_and_stride_as_inputs() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    arguments = [torch.tensor(value) for value in ([1, 3], [2, 2], [1, -2])]
    assert computed(dynamic, x, *arguments).tolist() == [[7, 5], [11, 9]]


def test_out_of_bounds_is_an_error() -> None:
    arguments = [torch.tensor(value) for value in ([1, 0], [3, 4], [1, 1])]
    with pytest.raises(LayerError, match=r"elements 1\.\.3 of axis 0 exceed the range 0\.\.2"):
        computed(dynamic, torch.ones(3, 4), *arguments)


@pytest.mark.parametrize("axis", [1, -1])
def test_axes_of_a_slice(axis: int) -> None:
    def add(net: Net, source: Any) -> Any:
        layer = net.net.add_slice(source, (1,), (2,), (1,))
        layer.axes = (axis,)
        return layer

    x = torch.arange(12).reshape(3, 4)
    assert torch.equal(computed(add, x), x[:, 1:3])


def gathered(mode: str, x: torch.Tensor, indices: torch.Tensor, axis: int = 0, batched: int = 0) -> torch.Tensor:
    def add(net: Net, source: Any, places: Any) -> Any:
        layer = net.net.add_gather_v2(source, places, trt.GatherMode.__members__[mode])
        layer.axis, layer.num_elementwise_dims = axis, batched
        return layer

    return computed(add, x, indices)


DATA = torch.arange(60.0).reshape(3, 4, 5)


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_gather(shape: tuple[int, ...], axis: int, dtype: torch.dtype) -> None:
    indices = torch.randint(0, DATA.shape[axis], shape, dtype=dtype)
    expected = DATA[(slice(None),) * axis + (indices.long(),)]
    assert torch.equal(gathered("DEFAULT", DATA, indices, axis), expected)


def test_gather_row_by_row() -> None:
    indices = torch.randint(0, 5, (3, 2))
    expected = torch.stack([row[:, own] for row, own in zip(DATA, indices, strict=True)])
    assert torch.equal(gathered("DEFAULT", DATA, indices, axis=2, batched=1), expected)


def test_gather_by_element() -> None:
    indices = torch.randint(0, 4, (2, 6, 5))
    assert torch.equal(gathered("ELEMENT", DATA, indices, axis=1), DATA.gather(1, indices))


@pytest.mark.parametrize(("batched", "depth"), [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)])
def test_gather_nd(batched: int, depth: int) -> None:
    leading = [*DATA.shape[:batched], 2]
    parts = [torch.randint(0, DATA.shape[batched + part], leading) for part in range(depth)]
    grids = torch.meshgrid(*map(torch.arange, leading), indexing="ij")[:batched]
    assert torch.equal(gathered("ND", DATA, torch.stack(parts, -1), 0, batched), DATA[(*grids, *parts)])


@pytest.mark.parametrize("mode", ["DEFAULT", "ELEMENT", "ND"])
@pytest.mark.parametrize("index", [-1, 3])
def test_indices_outside_are_errors(mode: str, index: int) -> None:
    """TensorRT takes no negative indices: a converter must add the length."""
    with pytest.raises(LayerError, match=r"exceed the range 0\.\.2"):
        gathered(mode, DATA, torch.full((1, 1, 1), index))


def scattered(mode: str, x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int = 0) -> torch.Tensor:
    def add(net: Net, source: Any, places: Any, values: Any) -> Any:
        layer = net.net.add_scatter(source, places, values, trt.ScatterMode.__members__[mode])
        layer.axis = axis
        return layer

    return computed(add, x, indices, updates)


def test_scatter_by_element() -> None:
    indices, updates = torch.tensor([[[3, 2, 1, 0, 1]]]), torch.randn(1, 1, 5)
    assert torch.equal(scattered("ELEMENT", DATA, indices, updates, 1), DATA.scatter(1, indices, updates))


def test_scatter_nd_leaves_its_input_alone() -> None:
    indices, updates, before = torch.tensor([[0, 3], [1, 2]]), torch.randn(2, 5), DATA.clone()
    expected = DATA.clone()
    expected[0, 3], expected[1, 2] = updates
    assert torch.equal(scattered("ND", DATA, indices, updates), expected)
    assert torch.equal(DATA, before)


def test_scatter_nothing() -> None:
    result = scattered("ND", DATA, torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 5))
    assert torch.equal(result, DATA)
