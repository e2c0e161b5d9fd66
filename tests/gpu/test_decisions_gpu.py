"""Models that take the ways of their example where data decides, with the module on the GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pipeline
from tests.export_fixes.test_example_guards import (
    FORMS,
    ONES,
    Steps,
    as_many,
    asks_for_a_size,
    counts_rows,
    grows,
    turns,
)
from tests.shapes.test_sizes import Calls

pytestmark = pytest.mark.gpu
COMPILE = pipeline.default(decisions="example", min_block_size=1)


@pytest.mark.parametrize("function", [grows, counts_rows, asks_for_a_size, turns, as_many], ids=lambda f: f.__name__)
@pytest.mark.parametrize("graphs", [False, True], ids=["", "graphs"])
def test_each_call_is_checked(function: Callable[[Tensor], Tensor], graphs: bool) -> None:
    run = COMPILE(Calls(function).eval().cuda(), (ONES.cuda(),)).module("tensorrt", cuda_graphs=graphs)
    same, other = (x.cuda() for x in FORMS[function])
    for x in (ONES.cuda(), same, same, same):
        torch.testing.assert_close(run(x), function(x))
    with pytest.raises(pipeline.DecisionError, match=r"another branch than .* at test_example_guards\.py:\d+"):
        run(other)
    torch.testing.assert_close(run(same), function(same))


def test_a_call_that_decides_otherwise_changes_no_state() -> None:
    x = ONES.cuda()
    run = COMPILE(Steps().eval().cuda(), (x,)).module("tensorrt")
    assert torch.equal(run(x), torch.cat([x, x]))
    with pytest.raises(pipeline.DecisionError):
        run(-x)
    assert torch.equal(run(x), torch.cat([x, x]) * 2)
