"""Each rule of the table beside eager PyTorch: complex calls that are drawn, one engine for them, at several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_map

from pipeline.decomposition import rewriter
from pipeline.decomposition.complex_functions import Pair
from pipeline.decomposition.complex_rules import RULES, rule_with_cast_results
from pipeline.recipes import qualified_name
from pipeline.testing import Call, CallError, CheckError, TensorSpec, check
from pipeline.testing.compare import compute_expected, describe_difference
from pipeline.testing.strategies import strategy_for
from pipeline.testing.strategies.common import (
    Draw,
    broadcast_shapes,
    is_accepted_by_eager,
    name_sizes,
    shapes,
    strategy,
    tensors,
)

aten = torch.ops.aten

NOT_UNARY = (aten.view_as_complex.default, aten.sym_numel.default, aten.squeeze.default)
SIZES = (aten.sym_size.int, aten.sym_numel.default)
"""Tested by every dynamic call: their results are no tensors."""

WITHOUT_EAGER = (aten.convolution.default, aten.empty.memory_format)
"""Tested in programs, by ``test_complex.py``: of these alone eager has no numbers to compare with."""

FINITE = st.sampled_from(("normal", "small", "nonzero"))
SCALARS = st.sampled_from((2j, 1 - 0.5j, 0.5, 3))


def numbers(draw: Draw, shape: Any, dtype: torch.dtype = torch.complex64, values: Any = FINITE) -> TensorSpec:
    """A tensor of finite numbers."""
    return draw(tensors(shape, dtype, values))


@strategy(*(op for op in RULES if len(op._schema.arguments) == 1 and op not in NOT_UNARY))
def unary(draw: Draw, target: Any) -> Call:
    values = "nonzero" if target in (aten.reciprocal.default, aten.log.default, aten.angle.default) else "unit"
    return draw(name_sizes(Call(target, (numbers(draw, draw(shapes(0, 4)), values=values),))))


@strategy(aten.view_as_complex.default)
def as_complex(draw: Draw, target: Any) -> Call:
    shape = draw(shapes(0, 4))
    return draw(name_sizes(Call(target, (numbers(draw, (*shape, 2), torch.float32),)), {0: range(len(shape))}))


@strategy(aten.complex.default, aten.polar.default)
def of_two_reals(draw: Draw, target: Any) -> Call:
    return draw(name_sizes(Call(target, tuple(numbers(draw, s, torch.float32) for s in draw(broadcast_shapes(2, 4))))))


@strategy(aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.eq.Tensor)
def binary(draw: Draw, target: Any) -> Call:
    kinds = draw(st.sampled_from(("cc", "cr", "rc", "cs", "rs", "ci")))
    dtypes = {"c": torch.complex64, "r": torch.float32, "i": torch.int64}
    a, b = draw(broadcast_shapes(2, 4))
    first = numbers(draw, a, dtypes[kinds[0]])
    second = numbers(draw, b, dtypes[kinds[1]], "nonzero") if kinds[1] != "s" else draw(SCALARS)
    return draw(name_sizes(Call(target, (first, second if kinds != "rs" else 2j))))


@strategy(aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.eq.Scalar)
def with_number(draw: Draw, target: Any) -> Call:
    return draw(name_sizes(Call(target, (numbers(draw, draw(shapes(0, 4))), draw(SCALARS)))))


@strategy(aten.pow.Tensor_Scalar)
def power(draw: Draw, target: Any) -> Call:
    exponent = draw(st.sampled_from((2, 3, -1, 5, 1, -2, 2.0)))
    return draw(name_sizes(Call(target, (numbers(draw, draw(shapes(0, 4)), values="nonzero"), exponent))))


@strategy(aten.vdot.default)
def vectors(draw: Draw, target: Any) -> Call:
    shape = draw(shapes(1, 1, with_zero=False))
    return draw(name_sizes(Call(target, (numbers(draw, shape), numbers(draw, shape)))))


@strategy(aten.full.default)
def full(draw: Draw, target: Any) -> Call:
    return Call(target, (list(draw(shapes(0, 4))), draw(SCALARS)), {"dtype": torch.complex64})


@strategy(aten.full_like.default)
def full_like(draw: Draw, target: Any) -> Call:
    return draw(name_sizes(Call(target, (numbers(draw, draw(shapes(0, 4))), draw(SCALARS)))))


@strategy(aten._to_copy.default)
def to_copy(draw: Draw, target: Any) -> Call:
    source, dtype = draw(st.sampled_from(((64, 0), (0, 64), (64, 1), (1, 64))))
    kinds = {64: torch.complex64, 0: torch.float32, 1: torch.bool}
    return draw(name_sizes(Call(target, (numbers(draw, draw(shapes(0, 4)), kinds[source]),), {"dtype": kinds[dtype]})))


LENGTHS = st.sampled_from((1, 2, 3, 8, 12, 254, 300, 1024))
"""Those above 256 are split; see ``pipeline/decomposition/complex_functions.py``."""


@strategy(aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default)
def fourier(draw: Draw, target: Any) -> Call:
    """One or two dims of three, of which at most one is long. All may vary but one whose size an argument says."""
    dims = draw(st.permutations(range(3)))[: draw(st.integers(1, 2))]
    shape = [draw(st.integers(1, 4)) for _ in range(3)]
    shape[dims[-1]] = last = draw(LENGTHS)
    if target is aten._fft_c2r.default:
        shape[dims[-1]] = last // 2 + 1
    which = last if target is aten._fft_c2r.default else draw(st.booleans())
    x = numbers(draw, shape, torch.float32 if target is aten._fft_r2c.default else torch.complex64)
    known = set(dims[-1:]) if target is aten._fft_c2r.default else set()
    return draw(name_sizes(Call(target, (x, dims, draw(st.sampled_from((0, 1, 2))), which)), {0: {*range(3)} - known}))


BY_HAND = {
    **fourier,
    **unary,
    **as_complex,
    **of_two_reals,
    **binary,
    **with_number,
    **power,
    **vectors,
    **full,
    **full_like,
    **to_copy,
    aten.ne.Tensor: binary[aten.eq.Tensor].map(lambda call: evolve(call, target=aten.ne.Tensor)),
    aten.ne.Scalar: with_number[aten.eq.Scalar].map(lambda call: evolve(call, target=aten.ne.Scalar)),
}


def complexified(call: Call) -> Call:
    """The call of reals with complex numbers in place of floats."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, TensorSpec) and leaf.dtype.is_floating_point:
            return evolve(leaf, dtype=torch.complex64, values="normal")
        if isinstance(leaf, TensorSpec) and leaf.dtype == torch.int8:
            return evolve(leaf, dtype=torch.int32)
        return torch.complex64 if isinstance(leaf, torch.dtype) else leaf

    args, kwargs = call.map_leaves(one)
    return evolve(call, args=args, kwargs=kwargs)


def is_floating(call: Call) -> bool:
    """Whether there are floats, of a rank that leaves one for the parts."""
    return any(s.dtype.is_floating_point for s in call.specs) and all(len(s.shape) < 6 for s in call.specs)


def strategy(target: Any) -> st.SearchStrategy[Call]:
    """Calls of a rule's operator with complex tensors."""
    if target in BY_HAND:
        return BY_HAND[target]
    reals = strategy_for(target)
    assert reals is not None, f"no strategy for {target}"
    return reals.filter(is_floating).map(complexified).filter(is_accepted_by_eager)


TARGETS = sorted(RULES.keys() - {*SIZES, *WITHOUT_EAGER}, key=qualified_name)


def drawn(examples: int) -> Any:
    """Hypothesis's settings for so many calls."""
    return settings(
        deadline=None, max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )


def in_pairs(values: Any) -> Any:
    """Pairs in place of complex tensors and numbers."""

    def one(value: Any) -> Any:
        tensor = isinstance(value, torch.Tensor)
        is_complex = value.is_complex() if tensor else isinstance(value, complex)
        return Pair(value.real.clone() if tensor else value.real, value.imag) if is_complex else value

    return tree_map(one, values)


def stacked(result: Any) -> tuple[torch.Tensor, ...]:
    """What a settled rule gives, as the kit has it: pairs in a last dim of 2."""
    results = result if isinstance(result, list) else [result]
    return tuple(torch.stack(r, -1) if isinstance(r, tuple) else r for r in results)


@pytest.mark.parametrize("target", TARGETS, ids=qualified_name)
@drawn(8)
@given(st.data())
def test_a_rule_is_the_operator(target: Any, data: st.DataObject) -> None:
    call = data.draw(strategy(target))
    args, kwargs = in_pairs(call.create_arguments())
    eager = call.run_eager()
    got = stacked(rule_with_cast_results(RULES[target], eager)(*args, **kwargs))
    want = compute_expected(call, call.opt_sizes, [g.dtype for g in got])
    assert not any(describe_difference(want, i, g, "reference") for i, g in enumerate(got))


@pytest.mark.parametrize("target", TARGETS, ids=qualified_name)
@drawn(1)
@given(st.data())
def test_a_rule_in_an_engine(target: Any, data: st.DataObject) -> None:
    """One engine, at several sizes where the call is dynamic."""
    call = data.draw(strategy(target).filter(lambda c: c.is_dynamic or target is aten.full.default))
    try:
        assert check(call)
    except CallError:  # PyTorch 2.13 takes the mean of complex numbers for static sizes only
        assert target in (aten.mean.default, aten.mean.dim) and check(call, dynamic=False)


WRONG = {
    aten.mul.Tensor: lambda a, b: Pair(a.real * b.real + a.imag * b.imag, a.real * b.imag + a.imag * b.real),
    aten._conj.default: lambda z: z,
    aten.view_as_complex.default: lambda x: Pair(x.select(-1, 1), x.select(-1, 0)),
    aten.angle.default: lambda z: torch.atan2(z.real, z.imag),
    aten.transpose.int: lambda z, a, b: Pair(z.real.transpose(a, b), z.imag.mT),
}


@pytest.mark.parametrize("target", WRONG, ids=qualified_name)
def test_a_planted_fault_is_caught(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    z = TensorSpec((2, "n", 3), torch.complex64)
    args: tuple[Any, ...] = {aten.mul.Tensor: (z, z), aten.transpose.int: (z, 0, 1)}.get(target, (z,))
    if target is aten.view_as_complex.default:
        args = (TensorSpec(("n", 2)),)
    call = Call(target, args, sizes={"n": 3})
    assert check(call)
    monkeypatch.setattr(rewriter, "RULES", {**RULES, target: WRONG[target]})
    with pytest.raises(CheckError):
        check(call)
