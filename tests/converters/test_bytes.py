"""Numbers beside tensors of bytes are bytes, and wrap, as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline
from pipeline.testing import Call, TensorSpec
from tests.converters.test_dtypes import BINARY, given, right

aten = torch.ops.aten
WRAPPED = given([0, 3, 200, 253], torch.uint8)


@pytest.mark.parametrize(
    "other", [given([-3], torch.int64, ()), TensorSpec((), torch.int64, ("given", (-3,)), constant=True)]
)
@pytest.mark.parametrize("target", [t for t in BINARY if t is not aten.pow.Tensor_Tensor])
def test_a_number_beside_bytes_is_one(target: Any, other: TensorSpec) -> None:
    """Whatever type the 0-d tensor has: -3 is 253."""
    right(Call(target, (WRAPPED, other)))
    right(Call(target, (given([9], torch.uint8), other)))


@pytest.mark.parametrize("number", [-3, 300])
@pytest.mark.parametrize(
    "target", [aten.eq.Scalar, aten.lt.Scalar, aten.fmod.Scalar, aten.mul.Scalar, aten.rsub.Scalar]
)
def test_so_is_a_python_number(target: Any, number: int) -> None:
    right(Call(target, (WRAPPED, number)))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("target", [aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default])
def test_so_is_one_that_logic_looks_at(target: Any, constant: bool) -> None:
    """256 is 0, and so False."""
    right(Call(target, (WRAPPED, TensorSpec((), torch.int64, ("given", (256,)), constant=constant))))


@pytest.mark.parametrize(
    "target",
    [
        *(aten.bitwise_left_shift.Tensor, aten.bitwise_right_shift.Tensor, aten.__lshift__.Tensor),
        aten.__rshift__.Tensor,
    ],
)
def test_so_is_one_that_is_shifted_or_shifts(target: Any) -> None:
    """259 is 3 and -3 is 253."""
    steps = given([0, 1, 3, 7, 8, 255], torch.uint8)
    for number in (-3, 259):
        right(Call(target, (WRAPPED, given([number], torch.int64, ()))))
        right(Call(target, (given([number], torch.int64, ()), steps)))


@pytest.mark.parametrize("number", [-3, 259])
def test_so_is_a_python_number_that_is_shifted_or_shifts(number: int) -> None:
    for target in (
        aten.bitwise_left_shift.Tensor_Scalar,
        aten.bitwise_right_shift.Tensor_Scalar,
        aten.__rshift__.Scalar,
    ):
        right(Call(target, (WRAPPED, number)))
    for target in (aten.bitwise_left_shift.Scalar_Tensor, aten.bitwise_right_shift.Scalar_Tensor):
        right(Call(target, (number, given([0, 1, 3, 7, 8, 255], torch.uint8))))


def test_bytes_that_are_filled_in_have_wrapped_before_they_are_read() -> None:
    class Filled(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(mask, value) > 100

    inputs = torch.tensor([1, 200], dtype=torch.uint8), torch.tensor([True, False]), torch.tensor(-3)
    run = pipeline.default()(Filled().eval(), args=inputs).module("reference")
    assert torch.equal(run(*inputs), Filled()(*inputs))
