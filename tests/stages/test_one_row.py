"""One row by weights that an engine reads where they lie: sums over products, with the norm before them and what they
are added to."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import pipeline
from pipeline.aten.rows import LINEAR_ONTO, NORMED_LINEAR
from pipeline.impl import one_row
from pipeline.improvements import FOR_ONE_ROW
from pipeline.stages.improve import Improve
from pipeline.trt import CAPABILITIES
from tests.stages.one_row import Act, Layer, compile_layers

pytestmark = pytest.mark.skipif(not CAPABILITIES.fast_sums, reason="this TensorRT has products that are as fast")
WIDTH = 128
HALVES = (torch.float16, torch.bfloat16)


def errors(made: Any, model: nn.Module, rows: int, dtype: torch.dtype) -> tuple[float, float]:
    """How far the program and eager are from float64, relative to the largest result."""
    x = torch.randn(1, rows, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = copy.deepcopy(model).double()(x.double())
    found = [f(x).double() for f in (made.module("reference"), model)]
    ours, eagers = (float((each - exact).abs().max() / exact.abs().max()) for each in found)
    return ours, eagers


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("act", [functional.silu, torch.relu, functional.gelu], ids=lambda f: f.__name__)
def test_a_layer_of_one_row_is_as_exact_as_eager(act: Act, dtype: torch.dtype, bias: bool) -> None:
    model = Layer(WIDTH, act=act, bias=bias).to(dtype).eval()
    made = compile_layers(model, WIDTH, dtype)
    one, several = (network.kinds() for network in made.networks)
    assert "MATRIX_MULTIPLY" not in one and several["MATRIX_MULTIPLY"] == 4
    for rows in (1, 4):
        ours, eagers = errors(made, model, rows, dtype)
        assert ours <= 1.5 * eagers + torch.finfo(dtype).eps


def test_norms_are_sums_beside_the_products() -> None:
    made = compile_layers(Layer(WIDTH, act=torch.relu), WIDTH, torch.float16)
    assert made.networks[0].kinds()["REDUCE"] == 4 + 2, "a product each, and a sum of squares for each norm"


def test_two_columns_share_a_sum_of_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_row, "PAIRED", 2 * 256)
    model = Layer(WIDTH, act=torch.relu, bias=True).half().eval()
    made = compile_layers(model, WIDTH, torch.float16)
    kinds = made.networks[0].kinds()
    assert (kinds["REDUCE"], kinds["CONCATENATION"]) == (4 + 2 + 1, 1)
    ours, eagers = errors(made, model, 1, torch.float16)
    assert ours <= 1.5 * eagers + torch.finfo(torch.float16).eps


@pytest.mark.parametrize(("feed", "least"), [(256, 1), (96, 1), (100, 0)])
def test_what_takes_long_is_computed_before_the_product(feed: int, least: int) -> None:
    made = compile_layers(Layer(WIDTH, feed), WIDTH, torch.float16)
    assert made.networks[0].kinds()["REDUCE"] == 4 + 2 + least, "the least of each group, if the row has groups"
    plain = compile_layers(Layer(WIDTH, feed, act=torch.relu), WIDTH, torch.float16)
    assert plain.networks[0].kinds()["REDUCE"] == 4 + 2


def test_numbers_that_are_none_stay_what_they_are() -> None:
    model = Layer(WIDTH).half().eval()
    module = compile_layers(model, WIDTH, torch.float16).module("reference")
    for value in (math.nan, math.inf):
        x = torch.randn(1, 1, WIDTH).half()
        x[0, 0, 3] = value
        assert torch.equal(module(x).isfinite(), model(x).isfinite())


def test_an_activation_that_gives_no_number_gives_none() -> None:
    """A group's least number neither hides nor spreads what is none."""

    class Powers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, 2)
            nn.init.constant_(self.linear.weight, 0.25)

        def forward(self, x: torch.Tensor) -> Any:
            return self.linear(x.exp() - 1)

    model = Powers().half().eval()
    module = compile_layers(model, WIDTH, torch.float16).module("reference")
    for value in (math.nan, math.inf, -math.inf, 20.0):
        x = torch.zeros(1, 1, WIDTH).half()
        x[0, 0, 5] = value
        torch.testing.assert_close(module(x), model(x), equal_nan=True)


def test_what_is_none_where_it_is_added_stays_there() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> Any:
            return x.sqrt() + self.linear(x * 0.5)

    model = Added().half().eval()
    module = compile_layers(model, WIDTH, torch.float16).module("reference")
    x = torch.rand(1, 1, WIDTH).half()
    x[0, 0, 7] = -1
    found = module(x)
    assert found.isnan().nonzero().tolist() == [[0, 0, 7]]
    torch.testing.assert_close(found, model(x), equal_nan=True, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_weight_whose_sizes_vary_is_multiplied(dim: int) -> None:
    """It is no weight, though the network takes it as one."""

    class Given(nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor, gain: torch.Tensor) -> Any:
            y = NORMED_LINEAR(x, gain, weight, None, 1e-6, True)
            return y, LINEAR_ONTO(x, weight, None, y.unsqueeze(-1))

    inner = torch.export.Dim("inner", min=2, max=64)
    shapes = {"x": {1: inner} if dim else None, "weight": {dim: inner}, "gain": {0: inner} if dim else None}
    args = tuple(torch.randn(*shape).half() for shape in ((1, 32), (24, 32), (32,)))
    made = pipeline.default(require_full_compilation=True)(Given().eval(), args, dynamic_shapes=shapes)
    for found, expected in zip(made.module("reference")(*args), Given()(*args), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_products_that_are_turned_are_kept_apart() -> None:
    """As behind a linear layer alone: TensorRT-RTX 1.4 may use the input's first batch for all."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.linear = nn.Parameter(torch.rand(WIDTH)), nn.Linear(WIDTH, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return self.linear(functional.rms_norm(x, [WIDTH], self.gain, 1e-6)).transpose(1, 2)

    x = torch.randn(2, 3, WIDTH).half()
    plain = pipeline.default(require_full_compilation=True)
    passes = plain.insert(Improve(passes=FOR_ONE_ROW, name="for_one_row"), before="validate")
    one, other = (each(Turned().half().eval(), (x,)).networks[0].kinds()["ELEMENTWISE"] for each in (plain, passes))
    assert one == other
