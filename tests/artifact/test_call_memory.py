"""A call of a loaded program takes no more memory than its file says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline.artifact.allocations import WIDEST, largest_nbytes, max_elements
from pipeline.recipes import Recipe, Ref, Step
from pipeline.runtime.call_memory import FORMULAS, CallLimit, _allocated_bytes
from pipeline.runtime.call_plan import CallPlan
from tests.artifact import test_hostile_files
from tests.artifact.programs import Case, Function
from tests.artifact.test_files import compiled
from tests.artifact.test_hostile_files import GELU, Records, of_graphs, of_operator, written

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")
entries = test_hostile_files.entries


def larger(target: str, *args: Any) -> Callable[[Records], None]:
    """A call of an operator in the place of another, with the same input, whose result has any size."""
    return lambda row: row.update(target=target, args={"tuple": [row["args"]["tuple"][0], *args]})


LARGER = larger("aten.repeat.default", [2**20, 2**10])
GREEDY: dict[str, Callable[[Records], object]] = {
    "a vector becomes a matrix": LARGER,
    "a size of data": larger("aten.bincount.default", None, 2**34),
    "in the graphs of control flow": of_graphs(
        lambda graph: [
            larger("aten.repeat.default", [2**20, 2**10])(n) for n in graph["nodes"] if n["target"][:4] == "aten"
        ]
    ),
}


@pytest.mark.parametrize("case", GREEDY)
def test_a_call_takes_no_more_memory_than_its_file_says(case: str, entries: dict[str, bytes], tmp_path: Path) -> None:
    change = GREEDY[case] if case.startswith("in ") else of_operator(GELU, GREEDY[case])
    program = pipeline.load(written(entries, change, tmp_path / "p.trtp"))
    with pytest.raises(pipeline.ExecutionError, match=r"p\.trtp allows a call at most 67\.1 MB"):
        program.module("reference")(torch.randn(3, 8))


def test_on_a_gpu_one_call_of_a_plan_is_checked() -> None:
    plan, bound = CallPlan([], {}, None, (), None), CallLimit(64, "p.trtp", once=True)
    ones: Callable[[object, int], torch.Tensor] = lambda plan, size: torch.ones(size)  # noqa: E731
    for size in (32, 64):  # a call that is refused shows nothing
        with pytest.raises(pipeline.ExecutionError, match="allows a call at most"):
            bound(ones, plan, size)
    bound(ones, plan, 16)
    bound(ones, plan, 64)  # the same plan has the same sizes


def test_sizes_that_depend_on_data_are_checked_at_each_call(entries: dict[str, bytes], tmp_path: Path) -> None:
    with_branches = written(entries, lambda records: None, tmp_path / "p.trtp")
    compiled(Case(Function(lambda m, x: m.linear(x)).eval(), (torch.randn(2, 8),), {})).save(tmp_path / "q.trtp")
    for path, once in ((with_branches, False), (tmp_path / "q.trtp", True)):
        program = pipeline.load(path).program
        assert (bound := CallLimit.from_file(program.parameters, program, once=True)) is not None and bound.once is once


def test_eager_takes_no_more_memory_than_its_file_says(entries: dict[str, bytes], tmp_path: Path) -> None:
    def change(records: Records) -> None:
        (row,) = (row for row in records["source.json"]["graph"]["nodes"] if row["target"] == GELU)
        LARGER(row)

    program = pipeline.load(written(entries, change, tmp_path / "p.trtp"))
    with pytest.raises(pipeline.PipelineError, match="allows a call at most"):
        pipeline.verify(executor="reference")(program)


PARAMETERS = {"a": (torch.float16, (3, 4)), "b": (torch.float32, (1, 4)), "i": (torch.int64, (2, 5))}
A, B, INDICES, R = Ref("a"), Ref("b"), Ref("i"), Ref("r")
BOUNDED = {
    "joined": Step("r", "aten.cat.default", ([A, A, B],)),
    "stacked": Step("r", "aten.stack.default", ([A, A], 1)),
    "expanded": Step("r", "aten.expand.default", (B, [5, -1])),
    "repeated": Step("r", "aten.repeat.default", (A, [2, 3, 1])),
    "cast": Step("r", "aten._to_copy.default", (A,), (("dtype", torch.complex128),)),
    "moved": Step("r", "aten.permute.default", (A, [1, 0])),
    "cut": Step("r", "aten.slice.Tensor", (A, 0, 1, 3)),
    "gathered": Step("r", "aten.gather.default", (B, 1, INDICES)),
    "looked up": Step("r", "aten.embedding.default", (A, INDICES)),
    "added": Step("r", "aten.add.Tensor", (A, B)),
    "filled": Step("r", "aten.full.default", ([3, 2], 1.5)),
    "counted": Step("r", "aten.arange.start", (-1, 4)),
}


@pytest.mark.parametrize("case", BOUNDED)
def test_a_bound_for_constants_is_at_least_their_size(case: str) -> None:
    recipe = Recipe("w", Ref("s"), (BOUNDED[case], Step("s", "aten.cat.default", ([R, R],))))
    bound = max_elements(recipe, PARAMETERS)
    assert bound is not None
    assert WIDEST * bound >= largest_nbytes([recipe], PARAMETERS) > 0


@pytest.mark.parametrize(
    "step",
    [
        Step("r", "aten.constant_pad_nd.default", (A, [9, 9])),
        Step("r", "aten.diag_embed.default", (A,)),
        Step("r", "aten.mm.default", (A, B)),
        Step("r", "aten.eye.default", (99,)),
        Step("r", "aten.arange.default", (1e12,)),
        Step("r", "aten.add.Tensor", (A, Ref("nobody"))),
    ],
    ids=lambda step: step.target,
)
def test_other_constants_have_no_simple_bound(step: Step) -> None:
    assert max_elements(Recipe("w", R, (step,)), PARAMETERS) is None


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_formulas_say_what_is_allocated(dtype: torch.dtype | None) -> None:
    aten, x = torch.ops.aten, torch.ones(3, 4, dtype=torch.float16)
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.empty.memory_format, ([3, 4],), {"dtype": dtype}),
        (aten.clone.default, (x,), {}),
        (aten.copy_.default, (x, x), {}),
    ]
    for function, args, kwargs in calls:
        assert FORMULAS[function](*args, **kwargs) == _allocated_bytes(function, args, kwargs)
