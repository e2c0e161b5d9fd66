"""Pooling over sizes that vary: by windows of known length, and by windows as long as a dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F  # noqa: N812
from torch.utils._pytree import tree_map

import pipeline
from pipeline.stages.unbuilt import unbuilt
from tests.shapes.test_sizes import Calls

Pool = Callable[[Tensor], Any]
WHOLE: dict[str, tuple[int, Pool]] = {
    "1d": (1, lambda x: (F.max_pool1d(x, x.size(2)), F.avg_pool1d(x, x.shape[-1]))),
    "1d by operator": (1, lambda x: torch.max_pool1d(x, (x.shape[2],), stride=1)),
    "2d": (2, lambda x: (F.max_pool2d(x, x.shape[2:]), F.avg_pool2d(x, kernel_size=x.size()[2:]))),
    "2d, a dim": (2, lambda x: (F.max_pool2d(x, (x.shape[2], 2), padding=(0, 1)), F.avg_pool2d(x, (2, x.shape[3]), 1))),
    "3d": (3, lambda x: (F.max_pool3d(x, x.shape[2:]), F.avg_pool3d(x, x.shape[2:]))),
    "3d, two dims": (3, lambda x: F.avg_pool3d(x, (2, *x.shape[3:]), stride=(3, 1, 1))),
}
ROWS: dict[str, tuple[int, Pool]] = {
    "windows": (1, nn.MaxPool1d(3, 2, 1)),
    "to the end": (1, lambda x: F.max_pool1d(x, 3, stride=[2], ceil_mode=True)),
    "by its operator": (1, lambda x: torch.max_pool1d(x, [2])),
}
POOLS = {**WHOLE, **ROWS}


@pytest.mark.parametrize(
    ("dtype", "device"), [(torch.float32, None), (torch.float16, None), (torch.bfloat16, "cuda")], ids=str
)
@pytest.mark.parametrize("name", POOLS)
def test_no_pooled_size_is_a_constant(name: str, dtype: torch.dtype, device: str | None) -> None:
    count, pool = POOLS[name]
    dims = {0: Dim("n", min=1, max=4)} | {2 + d: Dim(f"s{d}", min=4, max=9) for d in range(count)}
    compile = pipeline.default(require_full_compilation=True, device=device).replace("build", unbuilt)
    given = torch.randn(2, 3, *range(5, 5 + count)).to(dtype)
    compiled = compile(Calls(pool).eval(), (given,), dynamic_shapes=((dims,),))
    assert [(r.min, r.max) for r in compiled.program.shapes.values()] == [(1, 4)] + [(4, 9)] * count
    for shape in () if device else ((1, 3, *(4,) * count), (4, 3, *range(9, 9 - count, -1))):
        x = torch.randn(shape).to(dtype)
        expected = tree_map(lambda each: each.to(dtype), pool(x.float()))  # eager pools no volume of halves on a CPU
        torch.testing.assert_close(compiled.module("reference")(x), expected)


def test_without_a_batch() -> None:
    x, dims = torch.randn(3, 6), ({1: Dim("n", min=2, max=9)},)
    run = pipeline.default(min_block_size=1)(Calls(nn.MaxPool1d(2)), (x,), dynamic_shapes=(dims,))
    torch.testing.assert_close(run(x[:, :5]), F.max_pool1d(x[:, :5], 2))
