"""What the kit holds to be exact, and the sizes that it traces with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve

import pipeline
from pipeline.testing import Call, TensorSpec, check
from pipeline.testing.compare import compute_expected, describe_difference
from pipeline.testing.programs import build_call_program

aten = torch.ops.aten
COSH_89 = 2.2448061e38
"""The most that float32 holds is 3.4e38."""


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32])
def test_the_exact_values_of_integers_are_float64s(dtype: torch.dtype) -> None:
    call = Call(aten.cosh.default, (TensorSpec((3,), dtype, values=("given", [1, 0, 1])),))
    (exact,) = compute_expected(call, {}, [torch.float32]).exact
    assert exact.dtype == torch.float64
    assert exact.tolist() == torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).cosh().tolist()


def test_a_finite_value_is_right_where_eager_overflows_early() -> None:
    call = Call(aten.cosh.default, (TensorSpec((1,), torch.int64, values=("given", [89])),))
    want = evolve(compute_expected(call, {}, [torch.float32]), eager=(torch.tensor([torch.inf]),))
    assert not describe_difference(want, 0, torch.tensor([COSH_89]), "tensorrt")
    assert not describe_difference(want, 0, torch.tensor([torch.inf]), "reference")
    assert "1 of 1 elements" in describe_difference(want, 0, torch.tensor([1.001 * COSH_89]), "tensorrt")


def test_integers_are_float32s_first_where_eager_has_it_so() -> None:
    large = [(1 << 40) + 1]
    call = Call(aten.sin.default, (TensorSpec((1,), torch.int64, values=("given", large)),))
    (exact,) = compute_expected(call, {}, [torch.float32]).exact
    assert exact.tolist() == torch.tensor(large).float().double().sin().tolist()


def values_for_guards(call: Call) -> list[int]:
    shapes = build_call_program(call, pipeline.CompilationSettings()).program.graph.find_nodes(op="placeholder")
    return [int(d.node.hint) for d in shapes[0].meta["val"].shape]


@pytest.mark.parametrize(
    ("sizes", "hints"),
    [
        ({"n": 3, "m": 3, "k": 3}, [3, 4, 5]),
        ({"n": (1, 1, 8), "m": (1, 2, 8), "k": (1, 1, 2)}, [2, 3, 2]),
        ({"n": (2, 4, 4), "m": (2, 4, 4), "k": 4}, [4, 2, 5]),
    ],
)
def test_sizes_that_are_alike_are_told_apart(sizes: Any, hints: list[int]) -> None:
    call = Call(aten.relu.default, (TensorSpec(("n", "m", "k")),), sizes=sizes)
    assert values_for_guards(call) == hints


def test_a_copy_does_not_tie_sizes_that_are_alike() -> None:
    call = Call(aten.copy.default, (TensorSpec(("n", "m")), TensorSpec(("m",))), sizes={"n": 3, "m": 3})
    assert check(call)


def test_complex_calls_are_pairs_at_the_border() -> None:
    call = Call(
        aten.mul.Tensor, (TensorSpec(("n", 3), torch.complex64), TensorSpec((3,), torch.complex64)), sizes={"n": 2}
    )
    made = build_call_program(call, pipeline.CompilationSettings())
    assert [p.dtype for p in made.program.inputs] == [torch.float32] * 2
    assert [tuple(a.shape) for a in made.arguments(call, {"n": 4})] == [(4, 3, 2), (3, 2)]
    assert check(call, build=True)
