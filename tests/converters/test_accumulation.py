"""use_fp32_acc: products of halves are spelled as TensorRT recognises them, and kept in halves otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

import pipeline
from pipeline import quirks

Form: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

FORMS: dict[str, Form] = {
    "linear": nn.functional.linear,
    "matmul": lambda x, w, b: x @ w,
    "addmm": lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2),
    "addmm without its sum": lambda x, w, b: torch.addmm(b, x, w, beta=0),
}
ROUNDED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "linear": lambda product, b: product + b,
    "matmul": lambda product, b: product,
    "addmm": lambda product, b: 0.5 * b + 2 * product,
    "addmm without its sum": lambda product, b: product,
}
"""What becomes of the rounded product, whose rounding TensorRT may leave out."""


class Product(nn.Module):
    """A product with a weight and a bias."""

    def __init__(self, form: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.form = form
        generator = torch.Generator().manual_seed(0)
        self.w, self.b = (nn.Parameter(torch.randn(s, generator=generator)) for s in ((64, 64), (64,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 64] -> [N, 64]"""
        return self.form(x, self.w, self.b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_halves_are_multiplied_in_float32(name: str, dtype: torch.dtype) -> None:
    model, x = Product(FORMS[name]).to(dtype).eval(), torch.randn(3, 64).to(dtype)
    compiled = pipeline.default(use_fp32_acc=True, min_block_size=1)(model, args=(x,))
    [product] = [row for row in compiled.networks[0].layers if str(row.kind) == "MATRIX_MULTIPLY"]
    assert {str(output.dtype) for output in product.outputs} == {"float32"}
    assert all("float32" not in str(weight) for weight in compiled.networks[0].weights)
    with torch.no_grad():
        weight = model.w.double().T if name == "linear" else model.w.double()
        wanted = ROUNDED[name]((x.double() @ weight).to(dtype).double(), model.b.double()).to(dtype)
    torch.testing.assert_close(compiled.module(executor="reference")(x), wanted, rtol=torch.finfo(dtype).eps, atol=1e-4)


def sums(dtype: torch.dtype, **settings: Any) -> str:
    """The dtype in which the network has the product of a linear layer."""
    model, x = Product(FORMS["linear"]).to(dtype).eval(), torch.randn(3, 64).to(dtype)
    [network] = pipeline.default(min_block_size=1, **settings).until("convert")(model, args=(x,)).networks
    [product] = [row for row in network.layers if str(row.kind) == "MATRIX_MULTIPLY"]
    return str(product.outputs[0].dtype)


@pytest.mark.parametrize("sums_in_float32", [True, False])
def test_float16_is_widened_by_default_where_tensorrt_sums_in_halves(sums_in_float32: bool) -> None:
    with (quirks.without if sums_in_float32 else quirks.assume)("matmul-sums"):
        assert sums(torch.float16) == ("float16" if sums_in_float32 else "float32")
        assert sums(torch.bfloat16) == "bfloat16"
        assert sums(torch.float16, use_fp32_acc=False) == "float16"


def test_a_setting_that_is_no_flag_is_an_error() -> None:
    with pytest.raises(TypeError, match="use_fp32_acc must be True, False or None, got 'yes'"):
        pipeline.default(use_fp32_acc="yes")


def test_float32_is_left_alone() -> None:
    model, x = Product(FORMS["linear"]).eval(), torch.randn(3, 64)
    networks = [
        pipeline.default(use_fp32_acc=wide).until("convert")(model, args=(x,)).networks for wide in (False, True)
    ]
    assert str(networks[0]) == str(networks[1])


@pytest.mark.parametrize(("least", "slices"), [(0, 2), (1, 0)])
def test_sums_that_may_be_of_nothing_have_a_zero_more(least: int, slices: int) -> None:
    class Added(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            """[3, K], [K, 4], [4] -> [3, 4]"""
            return torch.addmm(bias, x, y)

    k = torch.export.Dim("k", min=least, max=8)
    given = torch.ones(3, 5), torch.ones(5, 4), torch.ones(4)
    compile = pipeline.default(require_full_compilation=True, min_block_size=1)
    compiled = compile(Added().eval(), args=given, dynamic_shapes={"x": {1: k}, "y": {0: k}, "bias": {}})
    filled = [row for row in compiled.networks[0].layers if row.kind == "SLICE" and row.attribute("mode") == "FILL"]
    assert len(filled) == slices
    for size in {least, 5}:
        result = compiled(torch.ones(3, size), torch.ones(size, 4), torch.ones(4))
        assert torch.equal(result, torch.full((3, 4), size + 1.0))
