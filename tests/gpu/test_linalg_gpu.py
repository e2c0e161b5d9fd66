"""Small matrices in engines, with the module on the GPU: as exact as the GPU's own library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import pipeline
from pipeline.converters.linalg import LARGEST
from tests.converters.test_linalg import FULL, FUNCTIONS, ROWS, Applied
from tests.gpu.test_wrong_kernels_gpu import BOUND, error

pytestmark = pytest.mark.gpu


@contextmanager
def products_in_tf32() -> Iterator[None]:
    """As an engine's products of float32 matrices are."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("size", [1, 2, 3, 4, LARGEST])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_exact_as_the_library(name: str, size: int) -> None:
    """Beside float64, the error is at most 4 times eager's own."""
    torch.manual_seed(0)
    model = Applied(FUNCTIONS[name]).eval()
    given = torch.randn(9, size, size).cuda(), torch.randn(9, size, 2).cuda()
    compiled = FULL(model, args=given, dynamic_shapes=({0: ROWS}, {0: ROWS})).module("tensorrt")
    for rows in (1, 9):
        a, b = (x[:rows] for x in given)
        with products_in_tf32():
            eager = model(a, b)
        ours, exact = compiled(a, b), model(a.double(), b.double())
        found, own = (float((x - exact).abs().max() / exact.abs().max()) for x in (ours, eager))
        assert found <= 4 * own + BOUND[torch.float32]


@pytest.mark.parametrize("name", ["solve", "determinant"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_beside_layers_in_halves(name: str, dtype: torch.dtype) -> None:
    """PyTorch has these operators in float32 alone: models widen before them."""
    torch.manual_seed(0)
    apart = 2 * torch.eye(4, device="cuda")
    model = Applied(lambda a, b: FUNCTIONS[name](a.to(torch.promote_types(a.dtype, torch.float32)) + apart, b + 0.0))
    given = torch.randn(9, 4, 4).cuda().to(dtype) / 4, torch.randn(9, 4, 2).cuda()
    assert error(model.eval(), given) <= BOUND[torch.float32]


def test_rows_are_exchanged() -> None:
    rows = [[[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1e-9, 3.0]], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]
    a = torch.tensor(rows, device="cuda")
    model = Applied(lambda a, b: (torch.linalg.inv(a), torch.linalg.det(a))).eval()
    torch.testing.assert_close(FULL(model, args=(a, a)).module("tensorrt")(a, a), model(a, a))


def test_a_singular_matrix_is_told() -> None:
    a = torch.stack([torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.eye(2)]).cuda()
    model = Applied(lambda a, b: (*torch.linalg.inv_ex(a), torch.linalg.det(a))).eval()
    inverse, info, det = FULL(model, args=(a, a)).module("tensorrt")(a, a)
    assert not inverse[0].isfinite().any() and torch.equal(inverse[1], torch.eye(2).cuda())
    assert info.tolist() == [2, 0]
    torch.testing.assert_close(det, torch.linalg.det(a))


def test_a_matrix_that_is_not_definite_is_told() -> None:
    a = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, -1.0, 1.0]))]).cuda()
    compiled = FULL(Applied(lambda a, b: torch.linalg.cholesky_ex(a)).eval(), args=(a, a))
    assert compiled.module("tensorrt")(a, a)[1].tolist() == [0, 2]


def test_large_ones_run_in_pytorch() -> None:
    a = torch.randn(LARGEST + 1, LARGEST + 1, device="cuda")
    model = Applied(lambda a, b: torch.linalg.inv(a) + b).eval()
    compiled = pipeline.default(min_block_size=1)(model, args=(a, a))
    torch.testing.assert_close(compiled.module("tensorrt")(a, a), model(a, a))
