"""The test of decompositions: it sees other operators, other numbers, and what is not used."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import torch

from examples.porting.addmm import addmm
from pipeline import register_torch_trt_decomposition
from pipeline.testing import Call, CheckError, TensorSpec, check_decomposition

aten = torch.ops.aten
FEW = hypothesis.settings(max_examples=4, derandomize=True, database=None)
MATRICES = (TensorSpec((5,)), TensorSpec(("n", 3)), TensorSpec((3, 5), constant=True))
ADDMM = Call(aten.addmm.default, MATRICES, sizes={"n": (1, 2, 4)})
SCALED = Call(aten.addmm.default, MATRICES, {"beta": 0.5, "alpha": 2.0}, sizes={"n": (1, 2, 4)})


def declared(function: Any, target: Any = aten.relu.default) -> Any:
    """A decomposition of an operator."""

    def made(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return register_torch_trt_decomposition(target)(made)


def test_a_right_one_passes() -> None:
    check_decomposition(addmm, ADDMM, SCALED, expected=[aten.mm, "aten.add.Tensor"], unexpected=[aten.bmm.default])


def test_calls_are_drawn() -> None:
    check_decomposition(addmm, expected=[aten.mm.default], unexpected=["aten::addmm"], profile=FEW)


def test_one_that_gives_its_own_operator_back_is_not_used() -> None:
    with pytest.raises(CheckError, match=r"is not used; it becomes aten.relu.default"):
        check_decomposition(declared(aten.relu), Call(aten.relu.default, (TensorSpec((2, 3)),)))


WRONG = {
    "an operator that is missing": (addmm, {"expected": [aten.bmm]}, "without aten.bmm, which is expected"),
    "an operator too many": (addmm, {"unexpected": [aten.mm.default]}, "with aten.mm.default, which is not"),
    "other numbers": (
        declared(lambda b, x, y, *, beta=1, alpha=1: b + aten.mm(x, y), aten.addmm.default),
        {},
        "values",
    ),
    "another shape": (
        declared(lambda b, x, y, *, beta=1, alpha=1: aten.mm(x, y)[:, :1], aten.addmm.default),
        {},
        "returned",
    ),
    "never used": (declared(lambda *args, **kwargs: NotImplemented, aten.addmm.default), {}, "is not used"),
    "raises": (declared(lambda *args, **kwargs: 1 / 0, aten.addmm.default), {}, "division by zero"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_one_fails(what: str) -> None:
    decomposition, options, words = WRONG[what]
    with pytest.raises(CheckError, match=words):
        check_decomposition(decomposition, SCALED, **options)


def test_what_declares_nothing_is_no_decomposition() -> None:
    with pytest.raises(TypeError, match="register_torch_trt_decomposition"):
        check_decomposition(torch.relu, ADDMM)


def test_an_operator_that_nothing_draws_needs_calls() -> None:
    with pytest.raises(LookupError, match="accepts: pass your own calls"):
        check_decomposition(declared(lambda x, y: x, aten._weight_int8pack_mm.default))


def test_what_no_converter_takes_runs_in_pytorch() -> None:
    wrong = declared(lambda x: torch.linalg.det(x), aten.logdet.default)
    logdet = declared(lambda x: torch.log(torch.linalg.det(x)), aten.logdet.default)
    spd = TensorSpec((3, 3), values="positive")
    check_decomposition(logdet, Call(aten.logdet.default, (spd,)), expected=[aten.log.default])
    with pytest.raises(CheckError, match="values"):
        check_decomposition(wrong, Call(aten.logdet.default, (spd,)))
