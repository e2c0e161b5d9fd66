"""Moving elements and making tensors: shuffle, concatenation, squeeze, padding, fill …"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.reference import LayerError
from pipeline.trt import to_trt, trt
from tests.runtime.reference_networks import Net, computed


def shuffled(
    x: torch.Tensor, first: Any = None, dims: Any = None, second: Any = None, zero: bool = True
) -> torch.Tensor:
    def add(net: Net, source: Any) -> Any:
        layer = net.net.add_shuffle(source)
        layer.zero_is_placeholder = zero
        for name, value in (("first_transpose", first), ("reshape_dims", dims), ("second_transpose", second)):
            if value is not None:
                setattr(layer, name, value)
        return layer

    return computed(add, x)


@given(shape=st.lists(st.integers(1, 3), max_size=5), data=st.data())
def test_shuffle_permutes_any_rank(shape: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    x = torch.randn(shape)
    assert torch.equal(shuffled(x, first=tuple(order)) if order else shuffled(x), x.permute(order))


def test_shuffle_reshapes_between_its_transposes() -> None:
    x = torch.randn(2, 3, 4)
    expected = x.permute(2, 1, 0).reshape(4, 6).t()
    assert torch.equal(shuffled(x, (2, 1, 0), (0, -1), (1, 0)), expected)


def test_zero_is_a_placeholder_or_a_size() -> None:
    assert shuffled(torch.ones(2, 3), dims=(0, 3, 1)).shape == (2, 3, 1)
    assert shuffled(torch.ones(0, 3), dims=(0, 5), zero=False).shape == (0, 5)


def test_shuffle_to_a_shape_that_is_an_input() -> None:
    def add(net: Net, source: Any, shape: Any) -> Any:
        layer = net.net.add_shuffle(source)
        layer.set_input(1, shape)
        return layer

    assert computed(add, torch.ones(2, 6), torch.tensor([3, -1])).shape == (3, 4)
    with pytest.raises(LayerError, match="-1 in"):
        computed(add, torch.ones(0, 6), torch.tensor([0, -1]))


@pytest.mark.parametrize("axis", [0, 1])
def test_concatenation(axis: int) -> None:
    parts = [torch.randn(2, 3), torch.randn(2, 3), torch.empty((0, 3) if axis == 0 else (2, 0))]

    def add(net: Net, *sources: Any) -> Any:
        layer = net.net.add_concatenation(list(sources))
        layer.axis = axis
        return layer

    assert torch.equal(computed(add, *parts), torch.cat(parts, axis))


def test_shape_of_a_dynamic_tensor() -> None:
    net = Net()
    layer = net.net.add_shape(net.input(torch.ones(2, 3), dynamic=(0,)))
    assert net.output(layer.get_output(0)).run()[0].tolist() == [2, 3]


def test_squeeze_and_unsqueeze() -> None:
    x = torch.randn(5, 1, 3, 1)
    assert torch.equal(computed(lambda n, y: n.net.add_squeeze(y, n.ints(1, -1)), x), x.reshape(5, 3))
    result = computed(lambda n, y: n.net.add_unsqueeze(y, n.ints(-1, 0)), torch.randn(5, 3))
    assert result.shape == (1, 5, 3, 1)
    assert computed(lambda n, y: n.net.add_unsqueeze(y, n.ints(0)), torch.tensor(4.0)).tolist() == [4.0]


def test_squeezing_what_is_not_one_is_an_error() -> None:
    net = Net()
    layer = net.net.add_squeeze(net.input(torch.ones(2, 3), dynamic=(0,)), net.ints(0))
    with pytest.raises(LayerError, match="must all have size 1"):
        net.output(layer.get_output(0)).run()


def test_padding_adds_zeros_and_trims() -> None:
    x = torch.randn(2, 3, 4, 5)
    result = computed(lambda n, y: n.net.add_padding_nd(y, (1, -1), (0, 2)), x)
    assert torch.equal(result, torch.nn.functional.pad(x, (-1, 2, 1, 0)))


def test_reverse_sequence() -> None:
    def add(net: Net, source: Any, lengths: Any) -> Any:
        layer = net.net.add_reverse_sequence(source, lengths)
        layer.batch_axis, layer.sequence_axis = 0, 1
        return layer

    x = torch.arange(8).reshape(2, 4)
    result = computed(add, x, torch.tensor([2, 4], dtype=torch.int32))
    assert result.tolist() == [[1, 0, 2, 3], [7, 6, 5, 4]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64], ids=str)
def test_fill_counts(dtype: torch.dtype) -> None:
    def add(net: Net) -> Any:
        layer = net.net.add_fill((4,), trt.FillOperation.LINSPACE, to_trt(dtype))
        layer.alpha, layer.beta = 3, -2
        return layer

    assert torch.equal(computed(add), torch.tensor([3, 1, -1, -3], dtype=dtype))


def test_fill_is_exact_in_int64() -> None:
    def add(net: Net) -> Any:
        layer = net.net.add_fill((2,), trt.FillOperation.LINSPACE, trt.int64)
        layer.alpha, layer.beta = 2**53 + 1, 3
        return layer

    assert computed(add).tolist() == [2**53 + 1, 2**53 + 4]


def test_fill_from_inputs_in_two_dimensions() -> None:
    def add(net: Net, shape: Any) -> Any:
        layer = net.net.add_fill((1, 1), trt.FillOperation.LINSPACE, trt.float32)
        layer.set_input(0, shape)
        layer.set_input(1, net.constant(torch.tensor(1.0)))
        layer.set_input(2, net.constant(torch.tensor([10.0, 1.0])))
        return layer

    assert computed(add, torch.tensor([2, 3])).tolist() == [[1, 2, 3], [11, 12, 13]]


def test_random_fills_say_why_they_have_no_reference() -> None:
    net = Net()
    layer = net.net.add_fill((4,), trt.FillOperation.RANDOM_UNIFORM, trt.float32)
    with pytest.raises(LayerError, match="does not support RANDOM_UNIFORM"):
        net.output(layer.get_output(0)).run()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int) -> None:
    indices, values = torch.tensor([[0, 3], [5, 1]], dtype=torch.int32), torch.tensor([-1.0, 2.0])

    def add(net: Net, places: Any, off_on: Any) -> Any:
        return net.net.add_one_hot(places, off_on, net.constant(torch.tensor(4, dtype=torch.int32)), axis)

    result = computed(add, indices, values)
    expected = torch.where(indices[..., None] == torch.arange(4), 2.0, -1.0)
    assert torch.equal(result, expected.movedim(-1, axis))


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1,) * 8])
def test_constants_of_every_rank(shape: tuple[int, ...]) -> None:
    value = torch.randn(shape)
    assert torch.equal(computed(lambda n: n.net.add_constant(shape, n.weight(value))), value)
