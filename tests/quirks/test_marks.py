"""Marks of nodes: a row's program is marked, its network follows the mark, and a row can be left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import pipeline
from pipeline import quirks
from pipeline.artifact import codec
from pipeline.program import Partitioned, Segment
from pipeline.quirks import QUIRKS

COMPILE = pipeline.default(min_block_size=1)
X, Y, Z = torch.randn(4, 1, 8), torch.randn(4, 5, 8), torch.randn(4, 8, 8)
MANY = {1: Dim("n", max=9)}


class Case(NamedTuple):
    """A program that a row marks, at which node."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    node: str
    dims: Any = None


CASES = {
    "transposed-matmuls": Case(lambda x: (x @ x).mT, (Z.half(),), "matmul"),
    "transposed-float32-matmuls": Case(lambda x: x @ x.mT, (Z,), "matmul"),
    "broadcast-in-reductions": Case(lambda x, y: x.softmax(-1) * y, (X, Y), "mul"),
    "sums-of-few": Case(lambda x: x[..., :4].softmax(-1).mean(1), (Y,), "softmax"),
    "expanded-loops": Case(lambda x: _steps(x), (torch.randn(2, 64),), "add_7"),
    "halves-behind-matmuls": Case(lambda x: (x.float().exp() @ x.float().mT).half(), (Y.half(),), "matmul"),
    "factors-of-matmuls": Case(lambda x: (x @ x.mT) * 0.3, (Y,), "matmul", (MANY,)),
    "biases-of-matmuls": Case(
        lambda x: torch.relu(torch.nn.functional.linear(x, x[0, 0].diag(), x[0, 0])), (Y,), "relu"
    ),
    "padded-zeros": Case(lambda x: x[..., :7].exp() @ x[..., :7].cos().mT, (Y,), "matmul"),
    "empty-loops": Case(
        lambda x, y: ((v := x.sin()[:, None]) * y, v * 2),
        (X[:, 0, 0], Y[..., 0]),
        "all",
        (None, {1: Dim("n", min=0, max=9)}),
    ),
}


def _steps(x: Tensor) -> Tensor:
    for _ in range(14):
        x = x[:, 1:] + x[:, :-1]
    return x


class Model(torch.nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.function = case.function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def partitioned(case: Case) -> Partitioned:
    dims = None if case.dims is None else {"inputs": case.dims}
    return COMPILE.until("avoid_faults")(Model(case).eval(), case.inputs, dynamic_shapes=dims)


def network(record: Partitioned) -> str:
    return str(pipeline.stages.convert(record).networks[0])


def test_each_row_that_marks_has_a_program() -> None:
    assert CASES.keys() == {quirk.id for quirk in QUIRKS if quirk.analysis is not None}


@pytest.mark.parametrize("id", CASES)
def test_a_mark_is_printed_and_followed_and_can_be_left_out(id: str) -> None:
    with quirks.assume(id):
        marked = partitioned(CASES[id])
        networked = network(marked)
        assert any(mark.quirk == id and str(mark).startswith(f"{CASES[id].node}:") for mark in _marks(marked))
        assert f"  mark   {CASES[id].node}: {id} (" in str(marked)
        with quirks.without(id):
            plain = partitioned(CASES[id])
            assert id not in str(plain) and network(plain) != networked


def _marks(record: Partitioned) -> Any:
    return [mark for segment in record.segments for mark in segment.marks or ()]


def test_the_stage_changes_nothing_but_marks() -> None:
    before = COMPILE.until("partition")(Model(CASES["broadcast-in-reductions"]).eval(), (X, Y))
    text = str(before)
    after = pipeline.stages.avoid_faults(before)
    assert str(before) == text != str(after)
    assert "\n".join(line for line in str(after).splitlines() if "  mark" not in line) == text
    assert pipeline.stages.avoid_faults(after) == after


def test_a_pipeline_without_the_stage_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = Model(CASES["broadcast-in-reductions"]).eval()
    COMPILE.until("convert")(model, (X, Y))
    assert "avoid_faults" not in caplog.text
    COMPILE.without("avoid_faults").until("convert")(model, (X, Y))
    assert "no avoid_faults stage ran before convert" in caplog.text


def test_files_keep_marks() -> None:
    (segment,) = partitioned(CASES["broadcast-in-reductions"]).segments
    assert codec.from_json(codec.to_json(segment, Segment), Segment) == segment


def test_unknown_rows_are_errors() -> None:
    with pytest.raises(ValueError, match="unknown ids of kernel bugs: padded_zeros; known ids: convolution-sums, "):
        quirks.without("padded_zeros")
