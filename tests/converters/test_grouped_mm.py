"""Products of groups of rows: what they become, for groups of any size, and that they are one engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim
from transformers.integrations import moe  # noqa: F401 - defines the operator

import pipeline

aten = torch.ops.aten
OPERATORS = {"aten": aten._grouped_mm.default, "transformers": torch.ops.transformers.grouped_mm_fallback.default}
ENDS = {"some": (2, 5, 6, 8), "none in two": (0, 5, 5, 8), "all in one": (0, 0, 8, 8), "one each": (1, 2, 3, 4)}


class Grouped(torch.nn.Module):
    """Four matrices of 16 x 8 for the groups of rows."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator, self.weight = operator, torch.nn.Parameter(torch.randn(4, 16, 8))

    def forward(self, x: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.operator(x, self.weight, offs)
        return result


CASES = (
    ("aten", torch.bfloat16, "known"),  # torch.export takes no other dtype
    *(("transformers", torch.float32, rows) for rows in ("known", "few", "dynamic")),
    ("transformers", torch.float16, "dynamic"),
)


@pytest.mark.parametrize(("operator", "dtype", "rows"), CASES)
def test_groups_are_one_engine(operator: str, dtype: torch.dtype, rows: str) -> None:
    torch.manual_seed(0)
    model = Grouped(OPERATORS[operator]).to(dtype).eval()
    count = 3 if rows == "few" else 8
    offs = torch.tensor([min(end, count) for end in ENDS["some"]], dtype=torch.int32)
    shapes = {"x": {0: Dim("rows", min=2, max=16)}, "offs": None} if rows == "dynamic" else None
    compile = pipeline.default(require_full_compilation=True)
    module = compile(model, (torch.randn(count, 16).to(dtype), offs), dynamic_shapes=shapes).module("reference")
    for ends in ENDS.values():
        x, offs = torch.randn(count, 16).to(dtype), torch.tensor([min(e, count) for e in ends], dtype=torch.int32)
        used = int(offs[-1])
        torch.testing.assert_close(module(x, offs)[:used], model(x, offs)[:used])
        assert not module(x, offs)[used:].any()


MANY = {"x": {0: Dim("rows", min=2, max=4096)}, "offs": None}
FEW_AND_MANY = [{"x": {0: 1}, "offs": None}, MANY]


@pytest.mark.parametrize(
    ("rows", "width", "profiles", "left"),
    [
        (1024, 8192, None, True),
        (128, 8192, None, False),
        (1024, 64, None, False),
        (1024, 8192, FEW_AND_MANY, False),
    ],
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_many_rows_by_large_matrices_stay_in_torch(
    operator: str, rows: int, width: int, profiles: Any, left: bool
) -> None:
    """Of each row by each matrix, an engine would compute as many times as much as there are matrices."""
    model = Grouped(OPERATORS[operator]).eval()
    model.weight = torch.nn.Parameter(torch.empty(4, 4096, width, dtype=torch.bfloat16))  # nobody reads it
    inputs = torch.zeros(rows, 4096, dtype=torch.bfloat16), torch.tensor([rows] * 4, dtype=torch.int32)
    sizes: Any = {"dynamic_shapes": MANY} if profiles is None else {"profiles": profiles}
    for full in (False, True):
        validated = pipeline.default(require_full_compilation=full).until("validate")(model, inputs, **sizes)
        assert ("takes longer than in PyTorch" in str(validated)) is (left and not full)
