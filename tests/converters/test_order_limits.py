"""The limits that validators of the order and reduction families state, tried on TensorRT itself."""

from __future__ import annotations

import pytest
import torch

from pipeline.impl.sort import LAST_DIMS, MAX_K
from pipeline.testing import Call, Checked, Rejected, Size, TensorSpec, check
from pipeline.trt import CAPABILITIES, Log, new_network, trt

aten = torch.ops.aten


def refused(shape: tuple[int, ...], k: int, axis: int) -> bool:
    """Whether TensorRT refuses this TopK."""
    network = new_network(trt.Builder(Log()))
    x = network.add_input("x", trt.float32, shape)
    layer = network.add_topk(x, trt.TopKOperation.MAX, k, 1 << axis)
    if layer is None:
        return True
    try:
        return len(layer.get_output(0).shape) != len(shape)
    except (RuntimeError, ValueError):
        return True


def test_topk_takes_3840_and_no_more() -> None:
    assert refused((2, MAX_K + 1), MAX_K + 1, 1)
    assert not refused((2, MAX_K), MAX_K, 1)
    result = check(Call(aten.topk.default, (TensorSpec((2, MAX_K + 1), values="distinct"), MAX_K + 1)))
    assert isinstance(result, Rejected)
    assert "TensorRT supports at most 3840" in str(result.reasons[0])


def test_sort_takes_as_much_as_topk() -> None:
    assert isinstance(check(Call(aten.sort.default, (TensorSpec((MAX_K,), values="distinct"),)), build=True), Checked)
    assert isinstance(check(Call(aten.sort.default, (TensorSpec((MAX_K + 1,), values="distinct"),))), Rejected)


@pytest.mark.parametrize("most", [MAX_K, MAX_K + 1])
def test_a_dynamic_length_is_judged_by_its_upper_bound(most: int) -> None:
    call = Call(aten.sort.default, (TensorSpec(("n",), values="distinct"),), sizes={"n": (1, 4, most)})
    assert isinstance(check(call), Checked) == (most == MAX_K)


def test_topk_works_along_the_last_four_dims_which_is_why_others_are_moved() -> None:
    assert refused((2, 2, 2, 2, 2), 1, 5 - LAST_DIMS - 1) or CAPABILITIES.version_tuple >= (1, 5)
    assert not refused((2, 2, 2, 2, 2), 1, 5 - LAST_DIMS)
    assert isinstance(check(Call(aten.topk.default, (TensorSpec((3, 2, 2, 2, 2), values="distinct"), 2, 0))), Checked)


def test_topk_takes_no_vector_which_is_why_one_gets_a_dim() -> None:
    assert refused((4,), 2, 0)


def test_bins_over_the_range_of_the_data_are_refused() -> None:
    result = check(Call(aten.histc.default, (TensorSpec((4,)), 3)))
    assert isinstance(result, Rejected)
    assert "span the data's range" in str(result.reasons[0])


def test_a_length_from_arithmetic_on_floats() -> None:
    call = Call(aten.arange.start_step, (0, Size("n"), 0.25), {"dtype": torch.float32}, {"n": (1, 3, 8)})
    assert isinstance(check(call, build=True), Checked)


def test_random_numbers_say_why_they_run_in_pytorch() -> None:
    result = check(Call(aten.bernoulli.p, (TensorSpec((2,)), 0.5)))
    assert isinstance(result, Rejected)
    assert "draws random numbers" in str(result.reasons[0])
