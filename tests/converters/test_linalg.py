"""Inverses, determinants and solutions of small matrices are in engines, and as exact as the library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.export import Dim

import pipeline
from pipeline.converters.linalg import LARGEST
from pipeline.converters.unsupported import reason_without_converter
from pipeline.recipes import qualified_name
from pipeline.testing import check
from pipeline.testing.strategies import strategy_for

aten = torch.ops.aten
FULL = pipeline.default(require_full_compilation=True, min_block_size=1)
COMPOSITES = (aten.linalg_det.default, aten.linalg_slogdet.default, aten.linalg_solve.default)


@pytest.mark.parametrize("target", COMPOSITES, ids=qualified_name)
@given(st.data())
def test_what_torch_composes(target: Any, data: st.DataObject) -> None:
    result = check(data.draw(strategy_for(target)), devices=("cuda",))
    assert result, result


class Applied(torch.nn.Module):
    """A function of a matrix and a right side."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return self.function(a, b)


def filtered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As a filter's gain: the solution for what a product makes definite."""
    return torch.cholesky_solve(b, torch.linalg.cholesky(a @ a.mT + torch.eye(a.shape[-1], device=a.device)))


FUNCTIONS: Final[dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    "inverse": lambda a, b: torch.linalg.inv(a) @ b,
    "determinant": lambda a, b: torch.linalg.det(a).unsqueeze(-1).unsqueeze(-1) * b,
    "solve": torch.linalg.solve,
    "solve a vector": lambda a, b: torch.linalg.solve(a, b[..., 0]),
    "filter": filtered,
    "power": lambda a, b: torch.linalg.matrix_power(a, -2) @ b,
}
ROWS = Dim("rows", min=1, max=9)


@pytest.mark.parametrize("size", [1, 2, 3, 4, LARGEST])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_exact_as_the_library(name: str, size: int) -> None:
    """Beside float64, the error is at most 4 times eager's own."""
    model = Applied(FUNCTIONS[name]).eval()
    given = torch.randn(9, size, size), torch.randn(9, size, 2)
    compiled = FULL(model, args=given, dynamic_shapes=({0: ROWS}, {0: ROWS}))
    for rows in (1, 9):
        a, b = (x[:rows] for x in given)
        ours, eager, exact = compiled(a, b), model(a, b), model(a.double(), b.double())
        error, own = (float((x - exact).abs().max() / exact.abs().max()) for x in (ours, eager))
        assert error <= 4 * own + 1e-6


def test_rows_are_exchanged() -> None:
    a = torch.tensor(
        [[[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1e-9, 3.0]], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]
    )
    compiled = FULL(Applied(lambda a, b: (torch.linalg.inv(a), torch.linalg.det(a))).eval(), args=(a, a))
    torch.testing.assert_close(compiled(a, a), (torch.linalg.inv(a), torch.linalg.det(a)))


def test_a_singular_matrix_is_told() -> None:
    a = torch.stack(
        [torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.eye(2), torch.tensor([[torch.nan, 1.0], [1.0, 2.0]])]
    )
    compiled = FULL(Applied(lambda a, b: (*torch.linalg.inv_ex(a), torch.linalg.det(a))).eval(), args=(a, a))
    inverse, info, det = compiled(a, a)
    assert not inverse[0].isfinite().any() and inverse[2].isnan().all() and torch.equal(inverse[1], torch.eye(2))
    assert info[:2].tolist() == torch.linalg.inv_ex(a[:2]).info.tolist() == [2, 0]
    torch.testing.assert_close(det, torch.linalg.det(a), equal_nan=True)


def test_a_matrix_that_is_not_definite_is_told() -> None:
    a = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, -1.0, 1.0]))])
    compiled = FULL(Applied(lambda a, b: torch.linalg.cholesky_ex(a)).eval(), args=(a, a))
    assert compiled(a, a)[1].tolist() == torch.linalg.cholesky_ex(a).info.tolist() == [0, 2]


def test_large_ones_run_in_pytorch_with_a_reason() -> None:
    a = torch.randn(LARGEST + 1, LARGEST + 1)
    compiled = pipeline.default(min_block_size=1)(Applied(lambda a, b: torch.linalg.inv(a) + b).eval(), args=(a, a))
    [fallback] = compiled.coverage.fallback
    assert (
        f"at most {LARGEST} rows" in fallback.reason
        and reason_without_converter(aten.linalg_inv_ex.default) in fallback.reason
    )
    torch.testing.assert_close(compiled(a, a), torch.linalg.inv(a) + a)
