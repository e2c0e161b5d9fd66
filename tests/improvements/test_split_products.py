"""split_products: products of few rows are sums of parts, as exact as in one, and other products stay as they are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline import Program, quirks
from pipeline.improvements.split_products import number_of_parts
from pipeline.stages.improve import Improve
from tests.improvements.programs import agree, decomposed, improved, targets, values

Tensor = torch.Tensor
MODULE = importlib.import_module("pipeline.improvements.split_products")
INNER, WIDTH = 1024, 256
FEW_AND_MANY = [({0: Dim("batch", max=8), 1: 1},), ({0: Dim("batch", max=8), 1: Dim("rows", min=2, max=64)},)]


@pytest.fixture(autouse=True)
def as_on_rtx() -> Iterator[None]:
    with quirks.assume("unsplit-sums"):
        yield


class Product(nn.Module):
    """A function of rows [..., 1024], a matrix [256, 1024] and a vector [256] of the model's."""

    def __init__(self, multiply: Callable[..., Tensor], dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(WIDTH, INNER, generator=generator).to(dtype) / 32)
        self.bias = nn.Parameter(torch.randn(WIDTH, generator=generator).to(dtype))
        self.multiply = multiply

    def forward(self, x: Tensor) -> Tensor:
        """What the function gives."""
        return self.multiply(x, self.weight, self.bias).relu()


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return nn.functional.linear(x, w, b)


def rows(*sizes: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(*sizes, INNER, generator=torch.Generator().manual_seed(1)).to(dtype)


def program_of(model: nn.Module, x: Tensor, **given: Any) -> Program:
    program: Program = pipeline.default().until("decompose")(model.eval(), args=(x,), **given)
    return program


def parts(program: Program) -> int:
    """How many parts of sums are selected."""
    return targets(program).count("select.int")


def errors(program: Program, model: Product, x: Tensor) -> tuple[float, float]:
    """The largest error of a program and of eager PyTorch beside float64, relative to the largest result."""
    with torch.no_grad():
        eager, exact = model(x), Product(model.multiply, torch.float64)
        exact.load_state_dict(model.state_dict())
        wanted = exact(x.double())
    [found] = values(program, x)
    scale = float(wanted.abs().max())
    return tuple(float((y.double() - wanted).abs().max()) / scale for y in (found, eager))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "multiply",
    [
        linear,
        lambda x, w, b: nn.functional.linear(x, w),
        lambda x, w, b: x @ w.t(),
        lambda x, w, b: x @ w.view(INNER, WIDTH),
        lambda x, w, b: torch.addmm(b, x.flatten(0, -2), w.view(INNER, WIDTH)),
        lambda x, w, b: torch.mm(x.flatten(0, -2), w.view(INNER, WIDTH)),
    ],
    ids=["linear", "no bias", "transposed", "matmul", "addmm", "mm"],
)
@pytest.mark.parametrize("shape", [(8,), (2, 4), (2, 1, 3)], ids=str)
def test_a_sum_is_split(multiply: Callable[..., Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    model, x = Product(multiply, dtype), rows(*shape, dtype=dtype)
    before = program_of(model, x)
    after = improved(before, "split_products")
    assert parts(after) == 4 and "matmul.default" in targets(after)
    assert not {"linear.default", "addmm.default", "mm.default"} & {*targets(after)}
    bound = 4 * torch.finfo(dtype).eps
    agree(before, after, x, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_it_is_as_exact_as_in_one_but_for_the_rounding_of_the_parts(dtype: torch.dtype) -> None:
    model, x = Product(linear, dtype), rows(8, dtype=dtype)
    ours, eager = errors(improved(program_of(model, x), "split_products"), model, x)
    assert eager > 0 and ours < 2 * eager


def test_sums_beyond_a_part_are_kept_in_float32() -> None:
    """Parts of 20,000, -20,000 and so on: in halves their sum would pass 65,504 on its way."""
    model, x = Product(lambda x, w, b: x @ w.t()), torch.ones(8, INNER).half()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([50000.0, 50000.0, -50000.0, -49000.0]).repeat_interleave(256) / 256)
    after = improved(program_of(model, x), "split_products")
    [found] = values(after, x)
    assert parts(after) == 4 and found.isfinite().all() and ((found - 1000).abs() < 60).all()


def test_two_profiles_share_the_parts() -> None:
    model, x = Product(linear), rows(2, 3)
    before = program_of(model, x, profiles=FEW_AND_MANY)
    after = improved(before, "split_products")
    assert parts(after) == 4
    for shape in ((8, 1), (2, 1), (3, 7)):
        agree(before, after, rows(*shape), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    ("tuned", "inner", "columns", "expected"),
    [
        ([8], 2048, 2048, 8),
        ([8, 4096], 2048, 2048, 4),
        ([8, 64], 2048, 2048, 8),
        ([8], 2048, 2560, 4),
        ([8], 8192, 3072, 4),
        ([2], 3072, 4096, 4),
        ([64], 5632, 2048, 8),
        ([8], 4096, 8192, 2),
        ([8], 4096, 8320, 1),  # blocks enough
        ([8], 2048, 32000, 1),
        ([1], 2048, 2048, 1),  # one row has other kernels
        ([1, 512], 2048, 2048, 1),
        ([65], 2048, 2048, 1),
        ([128, 512], 2048, 2048, 1),
        ([8], 1024, 2048, 4),  # parts no shorter than 256
        ([8], 1023, 2048, 1),
        ([8], 768, 2048, 1),
        ([8], 1920, 2048, 2),  # parts of whole blocks of 64
        ([8], 2000, 2048, 1),
        ([8], 2048, 1001, 1),
    ],
)
def test_as_many_parts_as_occupy_a_gpu(tuned: list[int], inner: int, columns: int, expected: int) -> None:
    assert number_of_parts(tuned, inner, columns) == expected


@pytest.mark.parametrize(
    ("multiply", "x"),
    [
        (linear, rows(1)),
        (linear, rows(1, 1)),
        (linear, rows(65)),
        (lambda x, w, b: nn.functional.linear(x, w * x.mean()), rows(8)),
        (lambda x, w, b: nn.functional.linear(x, w) + nn.functional.linear(x * 2, w), rows(8)),
        (lambda x, w, b: torch.addmm(b, x, w.view(INNER, WIDTH), alpha=2), rows(8)),
        (lambda x, w, b: torch.addmm(b[None], x, w.view(INNER, WIDTH)), rows(8)),
        (lambda x, w, b: nn.functional.linear(x, w, b * x.mean()), rows(8)),
        (lambda x, w, b: x[0] @ w.t(), rows(8)),
        (lambda x, w, b: x @ w.view(1, INNER, WIDTH), rows(8)),
        (lambda x, w, b: w @ x.t(), rows(8)),
    ],
)
def test_other_products_stay(multiply: Callable[..., Tensor], x: Tensor) -> None:
    before = program_of(Product(multiply), x)
    assert targets(improved(before, "split_products")) == targets(before)


def test_float32_stays() -> None:
    before = program_of(Product(linear, torch.float32), rows(8, dtype=torch.float32))
    assert targets(improved(before, "split_products")) == targets(before)


def test_one_row_of_two_profiles_stays() -> None:
    lone = [({1: 1},), ({1: Dim("rows", min=2, max=64)},)]
    before = program_of(Product(linear), rows(1, 3), profiles=lone)
    assert targets(improved(before, "split_products")) == targets(before)


def test_products_that_are_asked_for_in_float32_stay() -> None:
    before = decomposed(Product(linear), rows(8), use_fp32_acc=True)
    assert targets(improved(before, "split_products")) == targets(before)


def test_quantized_weights_stay() -> None:
    model = Product(
        lambda x, w, b: linear(x, torch.fake_quantize_per_tensor_affine(w.float(), 0.01, 0, -128, 127).half(), b)
    )
    before = program_of(model, rows(8))
    assert targets(improved(before, "split_products")) == targets(before)


@quirks.without("unsplit-sums")
def test_nothing_is_split_where_tensorrt_does() -> None:
    before = program_of(Product(linear), rows(8))
    assert targets(improved(before, "split_products")) == targets(before)


class Two(nn.Module):
    """Two layers of 1,024."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(INNER, INNER) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        """[batch, rows, 1024] -> the same"""
        return self.second(self.first(x).relu())


def compiled(model: nn.Module, *without: str) -> pipeline.Compiled:
    compile: Any = pipeline.default(require_full_compilation=True).replace("improve", Improve().without(*without))
    made: pipeline.Compiled = compile(model, args=(rows(2, 3),), profiles=FEW_AND_MANY)
    return made


def test_an_engine_has_its_weights_once() -> None:
    model = Two().half().eval()
    split, whole = compiled(model), compiled(model, "split_products")
    size, plain = (sum(len(engine.plan) for engine in made.engines) for made in (split, whole))
    assert parts(split.program) == 8 and size < plain + model.first.weight.nbytes / 2


def test_weights_are_refitted() -> None:
    """The parts are made of the model's own weights, by recipes."""
    model, other = (Two().half().eval() for _ in range(2))
    split = compiled(model)
    read = {name for recipe in split.refit_map.values() for name in recipe.parameters}
    assert parts(split.program) == 8 and read == set(model.state_dict())
    changed = pipeline.refit_module_weights(split, other)
    for each, wanted in ((split, model), (changed, other)):
        with torch.no_grad():
            torch.testing.assert_close(
                each.module(executor="reference")(rows(4, 1)), wanted(rows(4, 1)), rtol=4e-3, atol=4e-3
            )
