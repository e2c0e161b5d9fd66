"""The check: what passes, what is rejected, what is refused, and that a failure can be pasted."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import attrs
import hypothesis
import pytest
import torch

import pipeline
from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.converters.registry import ConverterRegistry
from pipeline.settings import CompilationSettings
from pipeline.testing import (
    ULPS,
    Call,
    CallError,
    CheckError,
    Rejected,
    Size,
    TensorSpec,
    check,
    check_converter,
    check_target,
)
from pipeline.testing.check import _check_fake_tensors
from pipeline.testing.compare import compute_expected, describe_difference
from pipeline.testing.programs import build_call_program

aten = torch.ops.aten

ADD = Call(aten.add.Tensor, (TensorSpec(("n", 3)), TensorSpec((3,), constant=True)), {"alpha": 2}, sizes={"n": 2})


def test_a_call_that_keeps_every_promise() -> None:
    result = check(ADD, build=True)
    assert result and result.used and result.built
    assert len(result.tried) == 4 and len(result.networks) == 1


def test_the_program_is_that_of_torch_export() -> None:
    class Add(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p1 = torch.nn.Buffer(torch.zeros(3))

        def forward(self, x0: torch.Tensor) -> Any:
            return (torch.add(x0, self.p1, alpha=2),)

    x = pipeline.Input(min_shape=(1, 3), opt_shape=(2, 3), max_shape=(8, 3))
    exported = pipeline.default().until("convert")(Add(), args=(x,)).networks[0]
    made = (
        pipeline.default().until("convert")(build_call_program(ADD, pipeline.CompilationSettings()).program).networks[0]
    )
    assert str(made).replace("add_tensor", "add") == str(exported).replace("add_tensor", "add")


def test_a_size_that_no_input_has_is_an_input() -> None:
    call = Call(aten.view.default, (TensorSpec((Size("n", 2), 3)), [Size("n"), 6]), sizes={"n": 2})
    assert [p.kind for p in build_call_program(call, pipeline.CompilationSettings()).program.inputs] == [
        "tensor",
        "symint",
    ]


def test_a_rejection_is_returned_with_its_reasons() -> None:
    never = Rejection("never on a Friday")

    @dynamo_tensorrt_converter(
        aten.add.Tensor, capability_validator=lambda node, settings: never, supports_dynamic_shapes=True
    )
    def add(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        raise AssertionError

    result = check(ADD, registry=DYNAMO_CONVERTERS.override(add))
    assert isinstance(result, Rejected) and not result
    assert never in result.reasons
    with pytest.raises(AssertionError, match=r"every call was rejected\n(.|\n)*never on a Friday"):
        check_converter(add)


def test_a_call_that_pytorch_does_not_take() -> None:
    with pytest.raises(CallError, match=r"only one value of these dynamic sizes: \{'n': 3\}"):
        check(Call(aten.add.Tensor, (TensorSpec(("n",)), TensorSpec((3,))), sizes={"n": 3}))
    with pytest.raises(CallError, match="RuntimeError"):
        check(Call(aten.add.Tensor, (TensorSpec((2,)), TensorSpec((3,)))))


def test_a_strategy_that_most_often_draws_no_call_is_an_error() -> None:
    sizes = hypothesis.strategies.integers(1, 3)
    sums = sizes.map(lambda n: Call(aten.add.Tensor, (TensorSpec((1 if n == 1 else n + 1,)), TensorSpec((n,)))))
    profile = hypothesis.settings(max_examples=20, derandomize=True, database=None)
    with pytest.raises(AssertionError, match="PyTorch rejects most of the random calls"):
        check_target(aten.add.Tensor, strategy=sums, profile=profile)


def test_a_failure_can_be_pasted() -> None:
    @dynamo_tensorrt_converter(aten.neg.default, supports_dynamic_shapes=True)
    def neg(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return args[0]

    registry = DYNAMO_CONVERTERS.override(neg)
    with pytest.raises(CheckError) as first:
        check_target(
            aten.neg.default, registry=registry, profile=hypothesis.settings(phases=[hypothesis.Phase.generate])
        )
    line = str(first.value).splitlines()[-1]
    pasted = {
        "torch": torch,
        "Call": Call,
        "TensorSpec": TensorSpec,
        "check": lambda call: check(call, registry=registry),
    }
    with pytest.raises(CheckError) as second:
        eval(line, pasted)
    assert str(second.value) == str(first.value)
    assert first.value.kind == "values"


def test_a_converter_that_a_decomposition_precedes_is_not_tested() -> None:
    @dynamo_tensorrt_converter(aten.neg.default)
    def neg(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        raise AssertionError

    def times_minus_one(x: Any) -> Any:
        return x * -1

    table = type(pipeline.DECOMPOSITIONS)({aten.neg.default: times_minus_one})
    with pytest.raises(AssertionError, match="never used, because the operator is decomposed first"):
        check_converter(neg, decompositions=table, dynamic=False)
    with pytest.raises(CheckError, match="was not used"):
        check(Call(aten.neg.default, (TensorSpec((2,)),)), decompositions=table, used=True)


def test_an_operator_without_a_strategy() -> None:
    with pytest.raises(LookupError, match=r"no strategy for .*, whose arguments depend on each other"):
        check_target(torch.ops.aten.grid_sampler_3d_backward.default, registry=ConverterRegistry())


def judged(call: Call, change: Any, executor: str = "reference") -> str:
    eager = call.run_eager()
    return describe_difference(compute_expected(call, {}, [eager.dtype]), 0, change(eager), executor)


NEG = Call(aten.neg.default, (TensorSpec((9,), values="special"),))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t, ""),
        (lambda t: t.double(), "the dtype is torch.float64, but torch.float32 in eager"),
        (lambda t: t[:3], r"the shape is \[3\], but \[9\] in eager"),
        (lambda t: t.nan_to_num(1.0), "nan"),
        (lambda t: t.clamp(-1e9, 1e9), "inf"),
        (lambda t: t * (1 + 1e-6), "elements are wrong"),
        (lambda t: t * (1 + 1e-7), ""),
        (lambda t: t + 0.0, "-?0.0, eager gives -?0.0"),
    ],
)
def test_what_is_wrong_is_said(change: Any, said: str) -> None:
    call = Call(aten.neg.default, (TensorSpec((40,), values="special"),)) if "inf" in said or "0.0" in said else NEG
    found = judged(call, change)
    assert (found == "") == (said == "")
    assert re.search(said, found)


def test_where_eager_is_not_a_number_the_exact_value_is_right() -> None:
    want = attrs.evolve(
        compute_expected(NEG, {}, [torch.float32]),
        eager=(torch.tensor([math.nan]),),
        exact=(torch.tensor([math.inf]).double(),),
    )
    assert describe_difference(want, 0, torch.tensor([math.inf]), "reference") == ""
    assert describe_difference(want, 0, torch.tensor([-math.inf]), "reference")
    assert describe_difference(want, 0, torch.tensor([1.0]), "reference")


def test_tensorrt_rounds_exponents() -> None:
    call = Call(aten.sigmoid.default, (TensorSpec((1,), values=("given", [-83.19])),))
    off = partial(torch.mul, 1 + 9e-7)
    assert judged(call, off, "tensorrt") == ""
    assert judged(call, off, "reference")
    near = Call(aten.sigmoid.default, (TensorSpec((1,), values=("given", [-0.5])),))
    assert judged(near, off, "tensorrt")


def test_a_size_that_tracing_fixes_is_an_error_of_the_call() -> None:
    call = Call(aten.neg.default, (TensorSpec((3,)),))
    traced = build_call_program(call, CompilationSettings()).program
    _check_fake_tensors(compute_expected(call, {}, [torch.float32]), traced)
    with pytest.raises(CallError, match=r"returns \[4\] in eager mode, but \[3\] when it is traced"):
        _check_fake_tensors(compute_expected(Call(aten.neg.default, (TensorSpec((4,)),)), {}, [torch.float32]), traced)


def test_a_sum_is_judged_by_what_it_adds_up() -> None:
    call = Call(aten.sum.default, (TensorSpec((64,)),))
    assert judged(call, lambda t: t + 1e-6) == ""
    assert judged(call, lambda t: t + 1e-3)


def test_every_row_of_the_table_names_an_operator_and_a_reason() -> None:
    for key, row in ULPS.items():
        name = key[0] if isinstance(key, tuple) else key
        assert hasattr(aten, name) or hasattr(torch.ops.pipeline, name)
        assert row.reason and row.units >= 0
