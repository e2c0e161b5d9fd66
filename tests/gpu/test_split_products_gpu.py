"""Products of few rows in parts of their sums on a GPU: right in both halves, in every profile, at decoders' sizes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.quirks import is_avoided

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not is_avoided("unsplit-sums"), reason="this TensorRT is taken to split sums itself"),
]
BATCH = Dim("batch", max=8)
PROFILES: dict[str, Any] = {
    "static": None,
    "a range": [({0: BATCH, 1: 1},)],
    "two profiles": [({0: BATCH, 1: 1},), ({0: BATCH, 1: Dim("rows", min=2, max=512)},)],
}


class Layer(nn.Module):
    """A product, a residual beside it and a norm after it, as decoders have them."""

    def __init__(self, inner: int, width: int, bias: bool) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(inner, width, bias=bias), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[batch, rows, inner], [batch, rows, width] -> [batch, rows, width]"""
        return self.norm(y + self.product(x))  # type: ignore[no-any-return]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("profiles", PROFILES)
@pytest.mark.parametrize("sizes", [(2048, 2560, False), (5632, 2048, False), (3072, 4096, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_few_rows_are_as_exact_as_eagers(dtype: torch.dtype, sizes: tuple[int, int, bool], profiles: str) -> None:
    torch.manual_seed(0)
    inner, width, _ = sizes
    model = Layer(*sizes).to("cuda", dtype).eval()
    exact = copy.deepcopy(model).double()

    def given(batch: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.randn(batch, rows, n, device="cuda").to(dtype) for n in (inner, width))  # type: ignore[return-value]

    named: Any = {} if PROFILES[profiles] is None else {"profiles": [each * 2 for each in PROFILES[profiles]]}
    compile: Any = pipeline.default(require_full_compilation=True)
    compiled = compile(model, args=given(8, 1), **named)
    assert "aten.select.int" in str(compiled.program)
    run = compiled.module(executor="tensorrt")
    shapes = {"static": [(8, 1)], "a range": [(8, 1), (3, 1)], "two profiles": [(8, 1), (3, 1), (8, 512), (2, 17)]}
    for x, y in (given(*shape) for shape in shapes[profiles]):
        with torch.no_grad():
            found, eager = run(x, y), model(x, y)
            wanted = exact(x.double(), y.double())
        assert error(found, wanted) <= 4 * error(eager, wanted) + torch.finfo(dtype).eps
