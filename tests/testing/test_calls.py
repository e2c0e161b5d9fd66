"""Calls: what they print can be pasted, sizes are put in everywhere, and the same call has the same tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.testing import Call, Size, TensorSpec
from pipeline.testing.strategies import strategy_for
from pipeline.testing.values import PARAMETRIC, VALUES, generate_values

aten = torch.ops.aten

CALLS = st.sampled_from([aten.add.Tensor, aten.clamp.default, aten.sum.dim_IntList, aten.gelu.default]).flatmap(
    strategy_for
)
PASTED = {"torch": torch, "Call": Call, "TensorSpec": TensorSpec, "Size": Size}


@given(CALLS)
def test_a_call_prints_as_python(call: Call) -> None:
    assert eval(repr(call), PASTED) == call


@given(CALLS)
def test_a_call_has_the_same_tensors_every_time(call: Call) -> None:
    for first, second in zip(call.create_tensors(), eval(repr(call), PASTED).create_tensors(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@given(CALLS)
def test_static_form_is_the_call_at_its_sizes(call: Call) -> None:
    static = call.with_static_sizes()
    assert not static.is_dynamic
    for first, second in zip(call.create_tensors(), static.create_tensors(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@given(CALLS)
def test_sizes_to_try_lie_in_their_ranges(call: Call) -> None:
    assert call.sizes_to_try[0] == call.opt_sizes
    for sizes in call.sizes_to_try:
        assert all(call.sizes[name].min <= size <= call.sizes[name].max for name, size in sizes.items())


def test_equal_specs_of_a_call_hold_different_values() -> None:
    a, b = Call(aten.add.Tensor, (TensorSpec((9,)), TensorSpec((9,)))).create_tensors()
    assert not torch.equal(a, b)


def test_a_size_may_be_computed_from_names() -> None:
    sizes = {"n": 3, "m": 4}
    assert Size("n", 2, 1).value_at(sizes) == 7
    assert Size("n*m", divisor=5).value_at(sizes) == 2
    call = Call(aten.view.default, (TensorSpec(("n", 6)), [Size("n", 2), 3]), sizes={"n": 3})
    assert call.run_eager({"n": 5}).shape == (10, 3)
    assert call.with_sizes({"n": 20}).run_eager().shape == (40, 3)


def test_a_call_wants_a_size_for_every_name() -> None:
    with pytest.raises(ValueError, match=r"sizes=\[\], but the arguments use the names \['n'\]"):
        Call(aten.neg.default, (TensorSpec(("n",)),))


def test_a_constant_has_no_dynamic_sizes() -> None:
    with pytest.raises(ValueError, match="parameter of the model"):
        Call(aten.neg.default, (TensorSpec(("n",), constant=True),), sizes={"n": 2})


def test_a_size_lies_in_its_range() -> None:
    with pytest.raises(ValueError, match="min, opt, max"):
        Call(aten.neg.default, (TensorSpec(("n",)),), sizes={"n": (2, 1, 3)})


def test_one_and_true_are_different_arguments() -> None:
    assert Call(aten.mul.Tensor, (TensorSpec((2,)), 1)) != Call(aten.mul.Tensor, (TensorSpec((2,)), True))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool], ids=str
)
@pytest.mark.parametrize("name", VALUES)
def test_values_have_the_shape_and_dtype(name: str, dtype: torch.dtype) -> None:
    made = generate_values(name, (3, 4), dtype, 1)
    assert made.shape == (3, 4) and made.dtype == dtype
    assert torch.equal(made.nan_to_num(), generate_values(name, (3, 4), dtype, 1).nan_to_num())


def test_values_keep_their_promises() -> None:
    assert generate_values("positive", (99,), torch.float16, 0).min() > 0
    assert generate_values("nonzero", (99,), torch.int32, 0).abs().min() > 0
    assert generate_values("distinct", (9, 9), torch.float32, 0).unique().numel() == 81
    assert generate_values("unit", (99,), torch.bfloat16, 0).abs().max() <= 1
    assert generate_values("large", (99,), torch.int64, 0).abs().max() > 1 << 31
    assert generate_values(("below", 3), (99,), torch.int64, 0).unique().tolist() == [0, 1, 2]
    assert generate_values(("given", [1, 2]), (2,), torch.int64, 0).tolist() == [1, 2]
    special = generate_values("special", (999,), torch.float32, 0)
    assert special.isnan().any() and special.isinf().any() and (special == 0).any()


def test_values_that_do_not_exist_are_named_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=f"'odd': expected one of .*{next(iter(PARAMETRIC))}"):
        generate_values("odd", (), torch.float32, 0)
