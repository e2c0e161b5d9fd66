"""What TensorRT-RTX computes wrongly, in the forms that our networks have: engines agree with eager in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.export import Dim

import pipeline
from pipeline import quirks
from pipeline.quirks import is_avoided
from pipeline.trt import CAPABILITIES
from tests.build.attentions import COMPARED, ROUNDED, Compared, Mixed, Repeated, Rounded
from tests.build.test_biases_of_products import FORMS as SQUARES
from tests.build.test_biases_of_products import GATES, Convolved, Gated, Squared
from tests.build.test_factors_of_products import STREAMS, streams
from tests.build.test_kernels_deconvolutions import FORMS as UPWARD
from tests.build.test_kernels_deconvolutions import GROUPS, Grouped, Upward
from tests.build.test_kernels_of_one import SumOfOne
from tests.build.test_kernels_pools import Averages
from tests.build.test_nothing_to_sum import (
    ANY,
    BROADCAST,
    DIMS,
    REDUCED,
    Backwards,
    Beside,
    Broadcast,
    Sent,
    all_columns,
    calls,
    columns,
    example,
    made,
    made_for_any,
    rows,
)
from tests.build.test_zeros_of_products import FORMS as LENGTHENED
from tests.build.test_zeros_of_products import WEIGHTS, Product
from tests.build.test_zeros_of_products import compiled as product_of
from tests.build.test_zeros_of_products import example as factors

pytestmark = pytest.mark.gpu
BOUND = {torch.float32: 4e-3, torch.float16: 8e-3, torch.bfloat16: 4e-2}
"""The largest error relative to the largest value; products in float32 have TF32's."""
DTYPES = pytest.mark.parametrize("dtype", BOUND, ids=str)
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "a sum of one": (SumOfOne, (2, 4, 1, 17)),
    "averages": (lambda: Averages(True, False, True), (2, 4, 9, 9)),
    "turned product": (Mixed, (3, 3, 32, 32)),
    "turned products": (Repeated, (2, 3, 16, 16)),
    **{f"transposed convolutions, {form}": (partial(Upward, form), (2, 8, 8, 8)) for form in UPWARD},
    **{f"after ReLU, {form}": (partial(Squared, form), (2, 12, 64)) for form in SQUARES},
    **{f"after GELU, {form}": (partial(Gated, form), (2, 12, 64)) for form in GATES},
    **{f"after a convolution's, {form}": (partial(Convolved, form), (2, 16, 8, 8)) for form in SQUARES},
}


def error(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], dynamic: Any = None, **settings: Any) -> float:
    """Of an engine, relative to the largest value; ``model`` is in float64 after it."""
    compile = pipeline.default(require_full_compilation=True, **settings)
    found = compile(model, args=inputs, dynamic_shapes=dynamic).module("tensorrt")(*inputs)
    with torch.no_grad():
        exact = model.double()(*(x.double() for x in inputs))
    leaves = (torch.utils._pytree.tree_leaves(value) for value in (found, exact))
    return max(float((ours.double() - want).abs().max() / want.abs().max()) for ours, want in zip(*leaves, strict=True))


@DTYPES
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_eager(name: str, dtype: torch.dtype) -> None:
    make, shape = MODELS[name]
    assert error(make().eval().to("cuda", dtype), (torch.randn(shape).to("cuda", dtype),)) <= BOUND[dtype]


def compared(form: str, dtype: torch.dtype) -> float:
    """The error of products with texts that attended to each other, three of them."""
    torch.manual_seed(0)
    inputs = tuple(x.to("cuda", dtype) for x in Compared.inputs(3))
    return error(Compared(form).eval().to("cuda", dtype), inputs)


@DTYPES
@pytest.mark.parametrize("form", COMPARED)
def test_products_with_what_is_transposed(form: str, dtype: torch.dtype) -> None:
    assert compared(form, dtype) <= BOUND[dtype]


@pytest.mark.skipif(not is_avoided("transposed-float32-matmuls"), reason="this TensorRT is taken to have them right")
@pytest.mark.xfail(strict=True, reason="what `impl.matmul.separate_transpose` is for")
@quirks.without("transposed-float32-matmuls")
def test_products_whose_factor_is_copied_by_a_kernel() -> None:
    assert compared("second factor", torch.float32) <= BOUND[torch.float32]


@pytest.mark.skipif(not is_avoided("rounded-deconvolutions"), reason="this TensorRT is taken to have them right")
@pytest.mark.xfail(strict=True, reason="what `impl.conv` is for")
@quirks.without("rounded-deconvolutions")
def test_transposed_convolutions_that_are_rounded_and_widened() -> None:
    model, x = Upward("two").eval().to("cuda", torch.bfloat16), torch.randn(2, 8, 8, 8).to("cuda", torch.bfloat16)
    assert error(model, (x,)) <= BOUND[torch.bfloat16]


@pytest.mark.skipif(not is_avoided("transposed-matmuls"), reason="this TensorRT is taken to have them right")
@pytest.mark.xfail(strict=True, reason="what `impl.matmul.linear` is for")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@quirks.without("transposed-matmuls")
def test_products_in_halves_whose_result_is_turned(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert error(Repeated().eval().to("cuda", dtype), (torch.randn(2, 3, 16, 16).to("cuda", dtype),)) <= BOUND[dtype]


@DTYPES
def test_products_whose_result_is_turned_in_sizes_that_vary(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Repeated().eval().to("cuda", dtype), torch.randn(2, 3, 16, 16).to("cuda", dtype)
    assert error(model, (x,), ({0: Dim("batch", max=4), 2: 2 * Dim("height", max=16)},)) <= BOUND[dtype]


def rounded(form: str, dtype: torch.dtype, dynamic: bool, decompose: bool) -> float:
    """The error of an attention whose result is rounded to halves before a product."""
    shapes = ({0: Dim("batch", max=4), 2: Dim("length", max=32)},) * 3 if dynamic else None
    model, inputs = Rounded(form).eval().to("cuda", dtype), Rounded.inputs(form, dtype, "cuda")
    return error(model, inputs, shapes, decompose_attention=decompose)


@DTYPES
@pytest.mark.parametrize("decompose", [False, True], ids=["fused", "apart"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("form", ROUNDED)
def test_products_of_batches(form: str, dynamic: bool, decompose: bool, dtype: torch.dtype) -> None:
    assert rounded(form, dtype, dynamic, decompose) <= BOUND[dtype]


@pytest.mark.skipif(CAPABILITIES.version_tuple >= (1, 5), reason="1.5 and newer have them right")
@pytest.mark.xfail(strict=True, reason="what `impl.matmul` is for")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@quirks.without("halves-behind-matmuls")
def test_products_of_batches_that_are_rounded_at_once(dynamic: bool, dtype: torch.dtype) -> None:
    assert rounded("by hand", dtype, dynamic, True) <= BOUND[dtype]


class Scaled(torch.nn.Module):
    """Two products, each times a number; the second of the first with itself."""

    def __init__(self, first: float, turned: bool) -> None:
        super().__init__()
        self.first, self.turned = first, turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, N, K] -> [2, N, N]"""
        y = torch.atan(x) @ x.mT * self.first
        return y @ (y.mT if self.turned else y) * 0.7


@DTYPES
@pytest.mark.parametrize("size", [3, 4, 64])
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("first", [1.0, 0.3])
def test_products_keep_their_factors(first: float, turned: bool, size: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, size, size, device="cuda", dtype=dtype)
    dynamic = {1: Dim("rows", min=1, max=64), 2: Dim("columns", min=1, max=64)}
    assert error(Scaled(first, turned).eval(), (x,), (dynamic,)) <= BOUND[dtype]


@DTYPES
@pytest.mark.parametrize("count", [20, 30])
def test_layers_whose_sizes_are_known_keep_their_factors(count: int, dtype: torch.dtype) -> None:
    """Beside others whose rows are as many, or more."""
    model, (known, rows) = streams(dtype)
    rows = torch.cat([rows, rows], 1)[:, :count]
    shapes = (tuple(STREAMS.values()),)
    assert error(model.cuda(), (known.cuda(), rows.cuda()), shapes) <= BOUND[dtype]


@DTYPES
def test_sums_of_nothing_leave_the_places_of_others(dtype: torch.dtype) -> None:
    x, *positions = example()
    inputs = (x.to("cuda", dtype), *(each.cuda() for each in positions))
    run = pipeline.default(require_full_compilation=True)(Sent().eval(), inputs, dynamic_shapes=DIMS).module("tensorrt")
    for x, *positions in calls():
        given = (x.to("cuda", dtype), *(each.cuda() for each in positions))
        torch.testing.assert_close(run(*given), Sent()(*given), rtol=1e-2, atol=1e-3)


@DTYPES
@pytest.mark.parametrize(("groups", "kernel", "stride"), GROUPS)
def test_transposed_convolutions_of_groups(groups: int, kernel: int, stride: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, 8, 14, device="cuda", dtype=dtype)
    refused = dtype == torch.bfloat16 and groups > 1
    for varies in ({2: Dim("length", min=3, max=40)}, {0: Dim("batch", min=1, max=4)}):
        model = Grouped(groups, kernel, stride, groups > 4).eval().to("cuda", dtype)
        with pytest.raises(pipeline.UnsupportedOperatorException, match="groups") if refused else nullcontext():
            assert error(model, (x,), (varies,)) <= BOUND[dtype]


@DTYPES
@pytest.mark.parametrize("form", REDUCED)
def test_reductions_of_nothing_leave_the_places_of_others(form: str, dtype: torch.dtype) -> None:
    """Its first call is the one with nothing: memory that an earlier one wrote would hide it."""
    model = Beside(form)
    run = made(model, columns(6, 3).to("cuda", dtype)).module("tensorrt")
    for x in (columns(6, 0), columns(3, 0), columns(6, 3)):
        x = x.to("cuda", dtype)
        torch.testing.assert_close(run(x), model(x), equal_nan=True, rtol=2e-2, atol=2e-2)


@DTYPES
@pytest.mark.parametrize("of_positions", [True, False], ids=["positions", "input"])
@pytest.mark.parametrize("form", BROADCAST)
def test_what_is_broadcast_over_nothing_is_written(form: str, of_positions: bool, dtype: torch.dtype) -> None:
    model, y = Broadcast(form, of_positions), torch.randn(6).to("cuda", dtype)
    run = made(model, columns(6, 3).to("cuda", dtype), y).module("tensorrt")
    for x in (columns(6, 0), columns(3, 0), columns(6, 3)):
        given = x.to("cuda", dtype), y[: len(x)]
        torch.testing.assert_close(run(*given), model(*given), rtol=2e-2, atol=2e-2)


@DTYPES
def test_nothing_is_turned_round(dtype: torch.dtype) -> None:
    run = made(Backwards(), columns(6, 3).to("cuda", dtype)).module("tensorrt")
    for x in (columns(6, 0), columns(3, 1), columns(6, 3)):
        given = x.to("cuda", dtype)
        assert torch.equal(run(given), Backwards()(given))


@DTYPES
@pytest.mark.parametrize("form", ANY)
def test_inputs_of_nothing_leave_what_is_computed_beside(
    form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_columns(monkeypatch)

    def given(*sizes: int) -> list[torch.Tensor]:
        return [x.to("cuda", dtype) for x in rows(ANY[form], *sizes)]

    run = made_for_any(ANY[form], *given(6, 3)).module("tensorrt")
    for each in (given(6, 0), given(3, 0), given(6, 3)):
        torch.testing.assert_close(run(*each), ANY[form](*each), equal_nan=True, rtol=2e-2, atol=2e-2)


@DTYPES
@pytest.mark.parametrize("form", [*LENGTHENED, *WEIGHTS])
def test_products_of_sizes_that_kernels_do_not_take(form: str, dtype: torch.dtype) -> None:
    for summed, varies in ((7, False), (33, False), *[(7, True)] * (form in LENGTHENED)):
        model = Product(form, summed).eval().to("cuda", dtype)
        run = product_of(model, factors(summed, dtype, "cuda"), varies=varies).module("tensorrt")
        for size in (7, 6, 33) if varies else (summed,):
            given = factors(size, dtype, "cuda")
            actual, expected = run(*given), copy.deepcopy(model).double()(*(x.double() for x in given))
            assert (actual.double() - expected).abs().max() <= BOUND[dtype] * expected.abs().max()


class Wide(torch.nn.Module):
    """A product in float32 of what is computed of halves, rounded to halves."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[…, 5, K], [K, 6] or [2, K, 6] -> […, 5, 6]"""
        wide = x.dtype if x.dtype == torch.float64 else torch.float32
        a, b = x.to(wide), y.to(wide)
        a, b = (a.exp() if self.form != "neither" else a), (b.cos() if self.form == "both" else b)
        return (a @ b).to(x.dtype)


@pytest.mark.parametrize("summed", [3, 7, 8, 33])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["", "batch"])
@pytest.mark.parametrize("form", ["both", "one", "neither"])
def test_products_in_float32_that_are_rounded_to_halves(form: str, batch: tuple[int, ...], summed: int) -> None:
    x, y = (torch.randn(*batch, *sizes).to("cuda", torch.float16) for sizes in ((5, summed), (summed, 6)))
    assert error(Wide(form).eval(), (x, y)) <= BOUND[torch.float16]
