"""Sizes as torch before 2.13 traces them: its kernels made symbols that nothing tells, and took exponents for
constants. Here they stand in for the kernels of the torch that runs the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import export
from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_and

import pipeline
from pipeline.capture import retracing
from pipeline.testing import Call, TensorSpec, check
from tests.operators import positive
from tests.shapes.test_data_dependent import CASES, ROWS
from tests.shapes.test_sizes import BOTH, ONE_ENGINE, Calls, compiled

aten = torch.ops.aten

SHAPES = ((1, 1), (1, 6), (5, 1), (4, 3), (9, 6))
LOST = ["ceil-div by math", "sym_min", "half of the rows", "mixed", "exponent"]


def _index(size: Any, index: Any) -> Any:
    if guard_or_false(sym_and(index >= 0, index <= size)):
        return index
    return index + size if guard_or_false(sym_and(index < 0, index >= -size)) else None


def _slice(mode: Any, func: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Where the ends are not known to be inside, and in order, the size and the offset are symbols of their own."""
    size, stride = x.shape[dim], x.stride(dim)
    first = 0 if start is None else _index(size, start)
    last = size if end is None or (isinstance(end, int) and end > 2**62) else _index(size, end)
    ordered = first is not None and last is not None and guard_or_false(last >= first)
    taken = (last - first + step - 1) // step if ordered else mode.shape_env.create_unbacked_symint()
    torch._check(taken >= 0)
    torch._check(taken <= size)
    offset = mode.shape_env.create_unbacked_symint() if first is None else x.storage_offset() + first * stride
    torch._check(offset >= 0)
    sizes, strides = list(x.shape), list(x.stride())
    sizes[dim], strides[dim] = taken, stride * step
    return x.as_strided(sizes, strides, offset)


@pytest.fixture
def before_2_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch with kernels as they were."""
    own = decomposition_table[aten.pow.Tensor_Scalar]

    def pow(base: Any, exponent: Any) -> Any:
        return base.clone() if exponent == 1.0 else base * base if exponent == 2.0 else own(base, exponent)

    monkeypatch.setattr("pipeline.export_fixes.patching.VERSION", (2, 12))
    monkeypatch.setitem(op_implementations_dict, aten.slice.Tensor, _slice)
    monkeypatch.setitem(decomposition_table, aten.pow.Tensor_Scalar, pow)


def _agrees(module: torch.nn.Module, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    for x in inputs:
        torch.testing.assert_close(module(x), function(x), rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("before_2_13")
@pytest.mark.parametrize("name", LOST)
def test_no_size_is_lost(name: str) -> None:
    function = ONE_ENGINE[name]
    result = compiled(function, [BOTH], torch.randn(4, 3))
    assert {s for s in result.program.shapes if s.startswith("u")} == set()
    assert [s.kind for s in result.partitioned.segments] == ["engine"]
    _agrees(result.module(executor="reference"), function, *(torch.randn(s) for s in SHAPES))


def few(*rows: int) -> list[torch.Tensor]:
    """Tensors of which about half of the elements are positive."""
    return [torch.randn(r, 4) for r in rows]


@pytest.mark.usefixtures("before_2_13")
def test_a_slice_of_what_data_decides_is_no_longer_than_that() -> None:
    function, _ = CASES["cut to length"]
    result = compiled(function, [ROWS], torch.randn(4, 4))
    assert [s for s in result.program.shapes if s.startswith("u")] == ["u0"]
    _agrees(result.module(executor="reference"), function, *few(1, 4, 9), -torch.rand(1, 4) - 0.1)


@pytest.mark.usefixtures("before_2_13")
@pytest.mark.parametrize("name", LOST[:-1])
def test_an_exported_program_has_its_sizes_again(name: str) -> None:
    function = ONE_ENGINE[name]
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        exported = export(Calls(function), (torch.randn(4, 3),), dynamic_shapes=((BOTH,),), strict=False)
    text = str(exported)
    assert "u0" in text
    result = pipeline.default(min_block_size=1)(exported)
    assert {s for s in result.program.shapes if s.startswith("u")} == set()
    _agrees(result.module(executor="reference"), function, *(torch.randn(s) for s in SHAPES))
    assert str(exported) == text


@pytest.mark.usefixtures("before_2_13")
def test_an_exported_slice_of_what_data_decides() -> None:
    function, _ = CASES["cut to length"]
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        exported = export(Calls(function), (torch.randn(4, 4),), dynamic_shapes=((ROWS,),), strict=False)
    _agrees(pipeline.default(min_block_size=1)(exported).module(executor="reference"), function, *few(1, 4, 9))


@pytest.mark.parametrize("starts", [True, False])
def test_an_index_of_any_sign_is_pytorchs(starts: bool, caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        return torch.relu((x[k:] if starts else x[:k]) * 2) * 3 + 1

    result = compiled(function, [ROWS, None], torch.randn(4, 3), torch.tensor(2))
    assert "upper bound" not in caplog.text
    assert "aten.slice.Tensor" in {f.target for f in result.coverage.fallback}
    module, x = result.module(executor="reference"), torch.randn(5, 3)
    for n in (0, 1, 3, 7, -1, -7):
        torch.testing.assert_close(module(x, torch.tensor(n)), function(x, torch.tensor(n)))


@pytest.mark.parametrize("exponent", [torch.int64, torch.float32])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.float32])
def test_powers_by_numbers_that_vary_have_eagers_dtype(dtype: torch.dtype, exponent: torch.dtype) -> None:
    whole = exponent == torch.int64

    def function(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0] if whole else x.shape[0] / 2
        return (x**n) + (n**x)

    module = compiled(function, [ROWS], torch.ones(4, 3, dtype=dtype)).module(executor="reference")
    for rows in (1, 2, 5):
        x = torch.full((rows, 3), 2, dtype=dtype)
        torch.testing.assert_close(module(x), function(x))


@pytest.mark.parametrize("low", [1, 3])
def test_a_dim_resized_to_one_element_is_the_first(low: int) -> None:
    x = TensorSpec((2, 2, 5, 3, "n"), torch.float16, seed=47)
    check(
        Call(
            aten.upsample_trilinear3d.vec,
            (x, None, True, (1.7, 1.7, 0.6 if low == 3 else 1.0)),
            sizes={"n": (low, 5, 8)},
        )
    )


@pytest.mark.usefixtures("before_2_13")
@pytest.mark.parametrize("name", LOST[:-1])
def test_no_engine_makes_a_size_that_it_could_not_tell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph as it was exported, with sizes of its own: such a slice runs in PyTorch, which learns them."""
    function = ONE_ENGINE[name]
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        exported = export(Calls(function), (torch.randn(4, 3),), dynamic_shapes=((BOTH,),), strict=False)
    monkeypatch.setattr(retracing, "_introduces_redundant_symbol", lambda node: False)
    result = pipeline.default(min_block_size=1)(exported)
    (slice,) = (f for f in result.coverage.fallback if f.target == "aten.slice.Tensor")
    assert "a size, u0, that is known only after the operator runs" in slice.reason
    _agrees(result.module(executor="reference"), function, *(torch.randn(s) for s in SHAPES))


def test_sizes_of_operators_that_do_not_say_that_they_make_some() -> None:
    def function(x: torch.Tensor) -> Any:
        found = positive(x * 2)
        return torch.relu(x.new_ones(found.shape[0]) * x[0, 0] + 1), found.shape[0] + 1

    _agrees(compiled(function, [ROWS], torch.randn(4, 4)).module(executor="reference"), function, *few(1, 4, 9))
