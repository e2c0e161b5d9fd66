"""Errors beside their bounds: what is right passes, what is wrong does not, NaN and infinity are where eager's are."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pipeline.records.agreement import OutputAgreement
from pipeline.verification.bounds import FLOAT32, Bound, MatmulPrecision, Spread, UnstablePart, measure_errors

ROW = OutputAgreement("y", "optimal")
SINGLE = Bound(torch.float32)
NAN, INF = math.nan, math.inf


def row(ours: Any, eager: Any, exact: Any = None, bound: Bound = SINGLE, varied: Any = tuple) -> OutputAgreement:
    return measure_errors(ROW, bound, ours, eager, exact, varied)


def test_the_bound_is_a_multiple_of_eagers_error_and_a_floor() -> None:
    exact = torch.tensor([1.0, 4.0], dtype=torch.float64)
    eager = exact.float() + torch.tensor([0.0, 1e-3])
    found = row(exact.float() + torch.tensor([3e-3, 0.0]), eager, exact)
    assert found.holds and found.error == pytest.approx(3e-3 / 4, rel=1e-3)
    assert found.eager_error == pytest.approx(1e-3 / 4, rel=1e-3)
    assert found.bound == pytest.approx(4 * found.eager_error + SINGLE.floor)
    assert not row(exact.float() + torch.tensor([5e-3, 0.0]), eager, exact).holds


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("products", FLOAT32)
def test_floors_in_halves(dtype: torch.dtype, products: MatmulPrecision) -> None:
    assert Bound(dtype, products).floor == 4 * torch.finfo(dtype).eps


def half_sums(a: torch.Tensor, b: torch.Tensor, terms: int = 16) -> torch.Tensor:
    """A matmul as tensor cores make it that sum in float16: exact over a few terms, rounded after each few."""
    parts = [x.float() @ y.float() for x, y in zip(a.split(terms, 1), b.split(terms, 0), strict=True)]
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for part in parts:
        total = (total.float() + part).to(a.dtype)
    return total


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("terms", [4096, 14336])
def test_a_sum_of_halves_in_halves_is_found(dtype: torch.dtype, terms: int) -> None:
    a, b = torch.randn(16, terms, dtype=dtype), torch.randn(terms, 24, dtype=dtype)
    exact = a.double() @ b.double()
    eager = exact.to(dtype)
    assert row(eager, eager, exact, Bound(dtype)).holds
    found = row(half_sums(a, b), eager, exact, Bound(dtype))
    assert not found.holds and found.norm_error > 4 * found.eager_norm_error
    assert "of the norm" in str(found)


# How far off what people run was on an H200, beside eager: docs/notes/2026-11-29-real-sizes.md.
@pytest.mark.parametrize(
    ("eager", "times", "bound"),
    [
        (2.1e-4, 21, Bound(torch.float16)),  # a linear layer of 14,336 terms
        (2.1e-4, 5.8, Bound(torch.float16)),  # of 4,096
        (2.1e-4, 6.8, Bound(torch.float16)),  # a convolution of 320 channels
        (2.1e-4, 4.6, Bound(torch.float16)),  # an attention of 4,096 positions
        (2.1e-4, 5.1, Bound(torch.float16)),  # of one row over 512
        (8.0e-3, 7.0, Bound(torch.float16)),  # the logits of Llama 8B
        (2.0e-3, 5.0, Bound(torch.float16)),  # T5-XXL's encoder
        (6.0e-4, 9.5, Bound(torch.float32, "tf32")),  # DPT
    ],
)
def test_the_bound_finds_what_was_wrong_at_real_sizes(eager: float, times: float, bound: Bound) -> None:
    exact = torch.randn(4096, dtype=torch.float64)
    noise = torch.randn(2, 4096, dtype=torch.float64)
    theirs, ours, half = (exact + noise[i] * error for i, error in ((0, eager), (1, eager * times), (1, eager * 3.5)))
    assert not row(ours, theirs, exact, bound).holds
    assert row(half, theirs, exact, bound).holds


def test_the_norm_of_a_few_errors_is_not_judged() -> None:
    exact = torch.ones(8, dtype=torch.float64)
    found = row(exact.half() + torch.finfo(torch.float16).eps, exact.half(), exact, Bound(torch.float16))
    assert found.holds and found.norm_bound == 0


def test_roundings_explain_a_norm_that_a_quarter_of_them_reach() -> None:
    exact = torch.linspace(-1, 1, 256, dtype=torch.float64)
    drawn = Spread(exact, exact)
    for far in (True, False, False, False):  # one of four takes another way
        drawn = drawn.add_run(exact + far * 0.002 * exact.flip(0), exact, 1.0)
    found = row((exact + 0.002 * exact).half(), exact.half(), exact, Bound(torch.float16), lambda: [drawn])
    assert found.holds and found.norm_bound == pytest.approx(0.0025)
    assert not row((exact + 0.004 * exact).half(), exact.half(), exact, Bound(torch.float16), lambda: [drawn]).holds


def test_floors_in_float32() -> None:
    floors = [Bound(torch.float32, products).floor for products in ("cpu", "ieee", "tf32")]
    assert floors == sorted(floors)
    assert floors == pytest.approx([3.8e-6, 3.05e-5, 4.9e-3], rel=0.01)


@pytest.mark.parametrize(
    ("ours", "eager", "exact", "holds"),
    [
        ([NAN, 1], [NAN, 1], [NAN, 1], True),
        ([INF, 1], [INF, 1], [INF, 1], True),
        ([-INF, 1], [INF, 1], [INF, 1], False),
        ([NAN, 1], [1, 1], [1, 1], False),
        ([1, 1], [NAN, 1], [NAN, 1], False),
        ([INF, 1], [1, 1], [1, 1], False),
        ([2, 1], [INF, 1], [2, 1], True),  # eager overflows on its way
        ([INF, 1], [INF, 1], [2, 1], True),  # so do we
    ],
)
def test_nan_and_infinity(ours: list[float], eager: list[float], exact: list[float], holds: bool) -> None:
    mine, theirs = (torch.tensor(v, dtype=torch.float32) for v in (ours, eager))
    found = row(mine, theirs, torch.tensor(exact, dtype=torch.float64))
    assert found.holds == holds


def test_integers_are_equal_to_eagers_or_to_the_exact_ones() -> None:
    a, b = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    assert row(a, a, a).holds and row(a, b, a).holds and row(b, b, a).holds
    assert not row(b, a, a).holds
    assert row(b, a, a).error == INF


def test_what_rounding_decides_is_left_out_and_counted() -> None:
    a, b, c = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]), torch.tensor([0, 2, 4])
    unstable = UnstablePart(torch.tensor([False, False, True]), torch.tensor([3, 4]))
    found = row(b, a, a, varied=lambda: [unstable])
    assert found.holds and (found.undecided, found.elements) == (1, 3)
    assert "1 of 3 elements are decided by rounding" in str(found)
    assert not row(c, a, a, varied=lambda: [unstable]).holds
    assert not row(torch.tensor([1, 2, 7]), a, a, varied=lambda: [unstable]).holds


def test_floats_behind_a_decision_are_between_those_that_it_chooses_from() -> None:
    exact = torch.tensor([1.0, 2.0, 8.0], dtype=torch.float64)
    unstable = UnstablePart(torch.tensor([False, True, False]), torch.tensor([2.0, 5.0], dtype=torch.float64))
    for value, holds in ((5.0, True), (5.00001, True), (5.1, False), (1.9, False)):
        ours = torch.tensor([1.0, value, 8.0])
        assert row(ours, exact.float(), exact, varied=lambda: [unstable]).holds == holds


def test_an_element_lies_in_the_range_that_other_roundings_give_it() -> None:
    exact = torch.tensor([1.0, 2.0, 8.0, 4.0], dtype=torch.float64)
    other = torch.tensor([1.0, 3.0, 8.0, 4.0], dtype=torch.float64)
    drawn = Spread(exact, exact)
    for value in (other, *[exact] * 9):
        drawn = drawn.add_run(value, exact, 1e-5)
    assert drawn.draws == ((1, 1 / 8), *[(0, 0.0)] * 9)
    wrong: list[tuple[float, ...]] = [(1, 3.1, 8, 4), (1, 1.9, 8, 4), (1, 3, 7, 4)]
    for values, holds in [((1, 3, 8, 4), True), *((each, False) for each in wrong)]:
        found = row(torch.tensor(values).float(), exact.float(), exact, varied=lambda: [drawn])
        assert found.holds == holds and bool(found.undecided) == (values[1] == 3)
    within = row(exact.float(), exact.float(), exact, varied=lambda: [drawn])
    assert within.holds and not within.undecided


def test_a_rounding_without_a_number_widens_no_range() -> None:
    exact = torch.tensor([1.0, 2.0, 8.0, 4.0], dtype=torch.float64)
    drawn = Spread(exact, exact)
    for value in (INF, NAN, -INF):
        drawn = drawn.add_run(torch.tensor([value, 2.0, 8.0, 4.0]).double(), exact, 1e-5)
    assert torch.equal(drawn.low, exact) and torch.equal(drawn.high, exact)


def moved(*places: int, by: float = 1.0) -> torch.Tensor:
    """0 to 15, some of them larger."""
    return torch.arange(16, dtype=torch.float64) + by * torch.eye(16)[list(places)].sum(0)


@pytest.mark.parametrize(
    ("ours", "holds"),
    [
        (moved(0, 1), True),
        (moved(0, by=-1.0), True),
        (moved(6), False),
        (moved(0, by=1.3), False),
        (moved(0, 1, 2, 3), True),
        (moved(0, 1, 2, by=-1.0), True),
        (moved(0, 1, 2, 3, 4, by=-1.0), False),
    ],
    ids=["as drawn", "the other way", "elsewhere", "more", "each as drawn", "three the other way", "too many"],
)
def test_an_output_of_many_choices_may_differ_as_its_roundings_do(ours: torch.Tensor, holds: bool) -> None:
    """Each rounding moves three elements out of six."""
    exact = torch.arange(16, dtype=torch.float64)
    drawn = Spread(exact, exact)
    for place in range(4):
        drawn = drawn.add_run(moved(*(i % 6 for i in range(place, place + 3))), exact, 1e-5)
    found = row(ours.float(), exact.float(), exact, varied=lambda: [drawn])
    assert found.holds == holds


def test_an_output_that_is_mostly_left_out_is_judged() -> None:
    exact = torch.arange(8, dtype=torch.float64)
    half = UnstablePart(torch.arange(8) < 4, torch.tensor([0.0, 9.0], dtype=torch.float64))
    drawn = Spread(exact, exact + (torch.arange(8) > 3), ((4, 1 / 7),))
    assert row((exact + (torch.arange(8) < 4)).float(), exact.float(), exact, varied=lambda: [half]).holds
    assert not row((exact + 1).float(), exact.float(), exact, varied=lambda: [half, drawn]).holds


def test_another_shape_dtype_or_number_is_wrong() -> None:
    x = torch.ones(2)
    assert not row(torch.ones(3), x).holds and not row(x.half(), x).holds and not row(3, 4).holds
    assert row(3, 3).holds and row(NAN, NAN).holds and not row(True, 1).holds


def test_complex_numbers_and_nothing_at_all() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    assert row(z, z, z.to(torch.complex128)).holds and not row(z * 1.1, z, z.to(torch.complex128)).holds
    assert row(torch.ones(0), torch.ones(0), torch.ones(0, dtype=torch.float64)).holds
