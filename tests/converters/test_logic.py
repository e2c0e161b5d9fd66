"""Logic: what TensorRT gets wrong of it is not in any network."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import pipeline
from pipeline.testing import Call, Checked, TensorSpec, check

aten = torch.ops.aten

BITWISE = {"AND": aten.bitwise_and, "OR": aten.bitwise_or, "XOR": aten.bitwise_xor}
LOGICAL = {"AND": aten.logical_and, "OR": aten.logical_or, "XOR": aten.logical_xor}
MASK = TensorSpec(("n", 1, 4), torch.bool)


def network_of(call: Call) -> str:
    result = check(call, build=True)
    assert isinstance(result, Checked) and result.used
    return "\n".join(map(str, result.networks))


@pytest.mark.parametrize("operation", BITWISE)
@pytest.mark.parametrize("value", [True, False])
def test_of_a_number(operation: str, value: bool) -> None:
    printed = network_of(Call(BITWISE[operation].Scalar, (MASK, value), sizes={"n": 2}))
    assert printed == network_of(Call(BITWISE[operation].Scalar_Tensor, (value, MASK), sizes={"n": 2})).replace(
        "scalar_tensor", "scalar"
    )
    assert f"op={operation}" not in printed
    assert ("IDENTITY" in printed) == (value == (operation == "AND"))


@pytest.mark.parametrize("operation", BITWISE)
@pytest.mark.parametrize("values", list(itertools.product((True, False), repeat=2)))
def test_of_a_constant(operation: str, values: Any) -> None:
    constant = TensorSpec((1, 2, 1), torch.bool, values=("given", values), constant=True)
    printed = network_of(Call(BITWISE[operation].Tensor, (constant, MASK), sizes={"n": 2}))
    assert f"op={operation}" not in printed


@pytest.mark.parametrize("operation", LOGICAL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_of_a_constant_of_numbers(operation: str, dtype: torch.dtype) -> None:
    scale = TensorSpec((), torch.float16, "small", constant=True, seed=1)
    printed = network_of(
        Call(LOGICAL[operation].default, (TensorSpec(("n",), dtype, "special"), scale), sizes={"n": 9})
    )
    assert f"op={operation}" not in printed and "to_type=bool" not in printed


@pytest.mark.parametrize("operation", BITWISE)
def test_of_two_inputs_it_is_one_layer(operation: str) -> None:
    printed = network_of(Call(BITWISE[operation].Tensor, (MASK, MASK), sizes={"n": 2}))
    assert [line.split()[0] for line in printed.splitlines()].count("ELEMENTWISE") == 1
    assert f"op={operation}" in printed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
@pytest.mark.parametrize(
    "target", [aten._to_copy.default, aten.any.default, aten.all.default, aten.logical_not.default]
)
def test_bools_are_comparisons(target: Any, dtype: torch.dtype) -> None:
    kwargs = {"dtype": torch.bool} if target is aten._to_copy.default else {}
    printed = network_of(Call(target, (TensorSpec(("n",), dtype, "special"),), kwargs, sizes={"n": 9}))
    assert "to_type=bool" not in printed


class Chooses(torch.nn.Module):
    """Chooses between a constant and itself, which TensorRT does not build."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = torch.arange(8)
        return torch.where(x > 0, numbers, numbers)


def test_a_choice_between_a_constant_and_itself_builds() -> None:
    x = torch.randn(4, 8)
    compiled = pipeline.default(require_full_compilation=True)(Chooses().eval(), (x,))
    assert torch.equal(compiled.module("reference")(x), Chooses()(x))
