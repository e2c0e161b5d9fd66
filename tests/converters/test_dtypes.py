"""Dtypes and numbers as in eager: promotion, integers to their last bit, and what floats have beside numbers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from pipeline.impl import base
from pipeline.recipes import qualified_name
from pipeline.testing import Call, Checked, TensorSpec, check
from pipeline.testing.strategies.common import is_accepted_by_eager

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
NUMBERS = (True, 3, 2.5)


def right(call: Call) -> None:
    result = check(call)
    assert isinstance(result, Checked), result.reasons


def given(values: Any, dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec((len(values),) if shape is None else shape, dtype, ("given", tuple(values)))


def operands() -> list[Any]:
    return [torch.ones(shape, dtype=dtype) for dtype in DTYPES for shape in ((2,), ())] + list(NUMBERS)


def test_common_dtypes_are_torchs() -> None:
    pairs = [pair for pair in itertools.product(operands(), repeat=2) if any(torch.is_tensor(v) for v in pair)]
    assert [base.result_type(*pair) for pair in pairs] == [torch.result_type(*pair) for pair in pairs]


BINARY = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.pow.Tensor_Tensor,
    aten.fmod.Tensor,
    aten.remainder.Tensor,
    aten.floor_divide.default,
    aten.atan2.default,
    aten.maximum.default,
    aten.minimum.default,
    aten.fmax.default,
    aten.fmin.default,
    aten.eq.Tensor,
    aten.ne.Tensor,
    aten.lt.Tensor,
    aten.le.Tensor,
    aten.gt.Tensor,
    aten.ge.Tensor,
    aten.logical_and.default,
    aten.logical_xor.default,
    aten.bitwise_and.Tensor,
    aten.bitwise_or.Tensor,
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_right_shift.Tensor,
)
SCALAR = (
    aten.add.Scalar,
    aten.sub.Scalar,
    aten.mul.Scalar,
    aten.div.Scalar,
    aten.pow.Tensor_Scalar,
    aten.pow.Scalar,
    aten.fmod.Scalar,
    aten.remainder.Scalar,
    aten.rsub.Scalar,
    aten.eq.Scalar,
    aten.lt.Scalar,
    aten.ge.Scalar,
    aten.bitwise_and.Scalar,
    aten.clamp_min.default,
)
PAIRS = (
    (torch.float16, (2,), torch.int64, (2,)),
    (torch.int32, (2,), torch.float32, ()),
    (torch.int64, (2,), torch.float16, ()),
    (torch.bfloat16, (2,), torch.float16, (2,)),
    (torch.float16, (2,), torch.float32, ()),
    (torch.bool, (2,), torch.int32, (2,)),
    (torch.bool, (2,), torch.bool, ()),
    (torch.uint8, (2,), torch.int32, ()),
    (torch.uint8, (2,), torch.bool, (2,)),
    (torch.int32, (), torch.int64, (2,)),
    (torch.int32, (2,), torch.int64, ()),
    (torch.float32, (), torch.int64, ()),
)
"""Of other categories and of one, in which a tensor of rank 0 does not count."""


@pytest.mark.parametrize("target", BINARY, ids=qualified_name)
def test_tensors_are_promoted(target: Any) -> None:
    calls = [Call(target, (TensorSpec(s, d, "positive"), TensorSpec(t, e, "positive"))) for d, s, e, t in PAIRS]
    taken = [call for call in calls if is_accepted_by_eager(call)]
    assert len(taken) >= 3
    for call in taken:
        right(call)


@pytest.mark.parametrize("target", SCALAR, ids=qualified_name)
def test_numbers_are_promoted(target: Any) -> None:
    calls = [
        Call(target, (number, spec) if target is aten.pow.Scalar else (spec, number))
        for number in NUMBERS
        for dtype in DTYPES
        for spec in [TensorSpec((2,), dtype, "positive")]
    ]
    for call in filter(is_accepted_by_eager, calls):
        if target is not aten.pow.Tensor_Scalar or call.specs[0].dtype != torch.bool:  # traced, it has another dtype
            right(call)


def wholes(dtype: torch.dtype) -> list[int]:
    bounds = torch.iinfo(dtype)
    large = [1 << 24, (1 << 31) + 1, (1 << 53) + 1, (1 << 62) + 1]
    some = {0, 1, 3, 7, bounds.max, bounds.max - 1, *(n + d for n in large for d in (-1, 0, 1) if n < bounds.max)}
    return sorted(some | {-n for n in some} | {bounds.min})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "target",
    [
        aten.floor_divide.default,
        aten.remainder.Tensor,
        aten.fmod.Tensor,
        aten.div.Tensor_mode,
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.lt.Tensor,
        aten.eq.Tensor,
        aten.ge.Tensor,
        aten.maximum.default,
        aten.minimum.default,
        aten.where.self,
        aten.bitwise_and.Tensor,
        aten.bitwise_xor.Tensor,
    ],
    ids=qualified_name,
)
def test_two_integers(target: Any, dtype: torch.dtype) -> None:
    """Each with each, but for what no integer is: a quotient by zero, the least by -1."""
    least = torch.iinfo(dtype).min
    divides = target._schema.name.split("::")[1] in ("floor_divide", "remainder", "fmod", "div")
    grid = itertools.product(wholes(dtype), repeat=2)
    pairs = [(a, b) for a, b in grid if not (divides and (b == 0 or (a == least and b == -1)))]
    a, b = (given(side, dtype) for side in zip(*pairs, strict=True))
    first = [given([i % 3 == 0 for i in range(len(pairs))], torch.bool)] if target is aten.where.self else []
    mode = {"rounding_mode": "trunc"} if target is aten.div.Tensor_mode else {}
    right(Call(target, (*first, a, b), mode))


ALONG: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sum": (aten.sum.dim_IntList, ([0],)),
    "cumsum": (aten.cumsum.default, (0,)),
    "prod": (aten.prod.dim_int, (0,)),
    "cumprod": (aten.cumprod.default, (0,)),
    "cummax": (aten.cummax.default, (0,)),
    "amax": (aten.amax.default, ([0],)),
    "amin": (aten.amin.default, ([0],)),
    "max": (aten.max.dim, (0,)),
    "min": (aten.min.dim, (0,)),
    "argmax": (aten.argmax.default, (0,)),
    "argmin": (aten.argmin.default, (0,)),
    "sort": (aten.sort.default, (0,)),
    "topk": (aten.topk.default, (3,)),
    "any": (aten.any.dim, (0,)),
    "abs": (aten.abs.default, ()),
    "neg": (aten.neg.default, ()),
    "sign": (aten.sign.default, ()),
    "relu": (aten.relu.default, ()),
    "clamp": (aten.clamp.default, (-(1 << 40), (1 << 40) + 1)),
    "gather": (aten.index_select.default, (0, given([2, 0, 5], torch.int64))),
    "not": (aten.bitwise_not.default, ()),
    "shifted": (aten.bitwise_left_shift.Tensor_Scalar, (3,)),
    "shifted back": (aten.bitwise_right_shift.Tensor_Scalar, (3,)),
    "times": (aten.mul.Scalar, (3,)),
    "to float": (aten._to_copy.default, ()),
}


@pytest.mark.parametrize("name", ALONG)
def test_int64_is_exact(name: str) -> None:
    target, more = ALONG[name]
    values = [v for v in wholes(torch.int64) if v > -(1 << 62)]
    shuffled = [values[i * 7 % len(values)] for i in range(len(values))]
    right(Call(target, (given(dict.fromkeys(shuffled), torch.int64), *more)))


@pytest.mark.parametrize("start", [(1 << 24) - 1, (1 << 31) - 2, (1 << 53) - 1, (1 << 62)])
def test_a_range_of_large_numbers(start: int) -> None:
    right(Call(aten.arange.start_step, (start, start + 9, 2), {"dtype": torch.int64}))


@pytest.mark.parametrize("target", [aten.sum.default, aten.cumsum.default, aten.prod.default], ids=qualified_name)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_sums_of_integers_do_not_round(target: Any, dtype: torch.dtype) -> None:
    """In eager they are int64 whatever they are sums of."""
    values = {torch.bool: [True] * 9, torch.uint8: [255] * 9}.get(dtype, [(1 << 24) + 1] * 300)
    right(Call(target, (given(values, dtype), *([0] if target is aten.cumsum.default else []))))


BYTES = given([0, 1, 5, 127, 128, 200, 250, 255], torch.uint8)
OTHERS = given([1, 2, 255, 128, 128, 100, 10, 255], torch.uint8)


@pytest.mark.parametrize(
    "target",
    [
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.floor_divide.default,
        aten.remainder.Tensor,
        aten.bitwise_xor.Tensor,
        aten.maximum.default,
        aten.lt.Tensor,
        aten.bitwise_left_shift.Tensor,
    ],
    ids=qualified_name,
)
def test_bytes_wrap(target: Any) -> None:
    right(Call(target, (BYTES, OTHERS)))


@pytest.mark.parametrize(
    "target", [aten.neg.default, aten.bitwise_not.default, aten.abs.default, aten.sum.default], ids=qualified_name
)
def test_a_byte_wraps(target: Any) -> None:
    right(Call(target, (BYTES,)))


@pytest.mark.parametrize("constant", [False, True], ids=["input", "constant"])
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize(
    "target",
    [
        *(aten.fmod.Tensor, aten.remainder.Tensor, aten.pow.Tensor_Tensor, aten.div.Tensor_mode),
        *(aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.lt.Tensor),
    ],
    ids=qualified_name,
)
def test_integers_are_halves_among_halves(target: Any, dtype: torch.dtype, constant: bool) -> None:
    """What is too large for them is infinite, though the operator computes in float32."""
    whole = TensorSpec((4,), torch.int64, values="large", seed=50, constant=constant)
    more = {"rounding_mode": "floor"} if target is aten.div.Tensor_mode else {}
    right(Call(target, (whole, TensorSpec((3, 4), dtype, values="large", seed=67)), more))


ODD = (math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, 1.5, -2.5, -0.4, 3.0)
KEEP: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "amax": (aten.amax.default, ([0],)),
    "amin": (aten.amin.default, ([0],)),
    "max": (aten.max.dim, (0,)),
    "min": (aten.min.dim, (0,)),
    "argmax": (aten.argmax.default, (0,)),
    "argmin": (aten.argmin.default, (0,)),
    "cummax": (aten.cummax.default, (0,)),
    "cummin": (aten.cummin.default, (0,)),
    "clamp": (aten.clamp.default, (-1.0, 1.0)),
    "clamp by NaN": (aten.clamp_min.default, (math.nan,)),
    "relu": (aten.relu.default, ()),
    "hardtanh": (aten.hardtanh.default, ()),
    "sign": (aten.sign.default, ()),
    "round": (aten.round.default, ()),
    "trunc": (aten.trunc.default, ()),
    "floor": (aten.floor.default, ()),
    "abs": (aten.abs.default, ()),
    "neg": (aten.neg.default, ()),
    "sum": (aten.sum.default, ()),
    "any": (aten.any.default, ()),
    "isnan": (aten.isnan.default, ()),
    "softmax": (aten._softmax.default, (0, False)),
    "logsumexp": (aten.logsumexp.default, ([0],)),
    "equal": (aten.eq.Scalar, (math.nan,)),
    "elu": (aten.elu.default, (False, -2)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", KEEP)
def test_what_is_no_number(name: str, dtype: torch.dtype) -> None:
    """All of them in one row, and each beside a number."""
    target, more = KEEP[name]
    right(Call(target, (given(ODD, dtype), *more)))
    right(Call(target, (given([v for v in ODD for v in (v, 0.5)], dtype, (2, len(ODD))), *more)))


@pytest.mark.parametrize("target", [aten.sort.default, aten.topk.default], ids=qualified_name)
@pytest.mark.parametrize("downwards", [True, False])
def test_nan_is_the_largest(target: Any, downwards: bool) -> None:
    x = given([math.nan, 3.5, -math.inf, 0.5, 1.5, -2.5], torch.float32)  # among infinities NaN has no order
    right(Call(target, (x, -1, downwards) if target is aten.sort.default else (x, 4, -1, downwards)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "target",
    [
        aten.maximum.default,
        aten.minimum.default,
        aten.fmax.default,
        aten.fmin.default,
        aten.lt.Tensor,
        aten.ge.Tensor,
        aten.eq.Tensor,
        aten.ne.Tensor,
        aten.add.Tensor,
        aten.mul.Tensor,
        aten.div.Tensor,
        aten.fmod.Tensor,
        aten.remainder.Tensor,
        aten.floor_divide.default,
        aten.pow.Tensor_Tensor,
        aten.atan2.default,
    ],
    ids=qualified_name,
)
def test_two_that_are_no_numbers(target: Any, dtype: torch.dtype) -> None:
    a, b = (given(side, dtype) for side in zip(*itertools.product(ODD, repeat=2), strict=True))
    right(Call(target, (a, b)))


@pytest.mark.parametrize("constant", [False, True])
def test_bounds_have_the_common_type_of_all_three(constant: bool) -> None:
    low = TensorSpec((), torch.float16, ("given", (-2.0,)), constant=constant)
    high = TensorSpec((), torch.float32, ("given", (1.1,)), constant=constant)
    right(Call(aten.clamp.Tensor, (given([1, 2, 4097], torch.int64), low, high)))
    right(Call(aten.clamp.Tensor, (given([1, 2, 3], torch.float16), low, high)))
    right(Call(aten.clamp.Tensor, (given([1, 2, 3], torch.int32), None, high)))


def test_common_dtypes_of_three() -> None:
    """Tensors with dims first, then those without, then numbers."""
    x, half, single = torch.ones(2), torch.ones((), dtype=torch.float16), torch.ones((), dtype=torch.float32)
    assert base.result_type(x.long(), half, single) == torch.float32
    assert base.result_type(x.half(), half, single) == torch.float16
    assert base.result_type(x.long(), half, 2.5) == torch.float16
    assert base.result_type(x.long(), 2.5, True) == torch.float32
    assert base.result_type(single.long(), 2, 2.5) == torch.float32
    assert base.result_type(2, True) == torch.int64
