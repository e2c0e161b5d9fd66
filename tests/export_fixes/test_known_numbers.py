"""Numbers that Python reads from tensors made of sizes are sizes, and no others are taken for known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.export import export
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

import pipeline
from pipeline import Compiled
from pipeline.export_fixes.known_numbers import MAX_RATIO_SIZE, RATIO_RULES, Ratio, is_determined_by_sizes
from pipeline.stages.unbuilt import unbuilt
from tests.shapes.test_sizes import Calls
from tests.zoo.before import older_than

ROWS = {0: torch.export.Dim("rows", min=4, max=20)}
SIZES = (4, 5, 12, 16, 17, 20)
EXAMPLE = torch.randn(12, 3)


def span(x: torch.Tensor) -> torch.Tensor:
    """The size, at most 16, as a tensor."""
    return torch.tensor(min(x.shape[0], 16))


def between(x: torch.Tensor) -> torch.Tensor:
    """As DeBERTa takes its relative positions."""
    positions = torch.arange(32.0).repeat(3, 1).T
    near = positions[16 - span(x) : 16 + span(x)].sum(0)
    return x * near + torch.clamp(torch.arange(x.shape[0])[:, None] + span(x), 0, span(x) * 2 - 1)


def strides(x: torch.Tensor, stride: torch.Tensor, rounded: Callable[..., torch.Tensor]) -> torch.Tensor:
    """As audio codecs count their frames."""
    frames = (torch.tensor(x.shape[0]) - 5 + torch.tensor(1)) / stride + 1
    return rounded(frames).to(torch.int64) - 1


def written(x: torch.Tensor) -> torch.Tensor:
    n = torch.tensor(x.shape[0])
    n += 1
    return x.repeat(n.item(), 1)


def written_through_a_view(x: torch.Tensor) -> torch.Tensor:
    n = torch.tensor(x.shape[0])
    n.view(1).add_(1)
    return x.repeat(n.item(), 1)


def put(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[: span(x) - 1] = 0
    return y * 2


KNOWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "between": between,
    "item": lambda x: x.repeat(torch.tensor(x.shape[0]).item(), 1),
    "int32": lambda x: x.repeat(torch.tensor(x.shape[0], dtype=torch.int32).item(), 1),
    "a filled tensor": lambda x: x.repeat(torch.full((1,), x.shape[0]).item(), 1),
    "largest": lambda x: x.repeat(2, torch.arange(x.shape[0]).unsqueeze(0).repeat(2, 1).max() + 1),
    "largest of a shifted range": lambda x: x.repeat(2, (torch.arange(2, x.shape[0] + 1, 3) - 1).max()),
    "largest, turned around": lambda x: x.repeat(2, torch.arange(x.shape[0]).flip(0).roll(1).max() + 1),
    "quotients": lambda x: (x[: torch.tensor(x.shape[0]) // 2], x[: torch.div(span(x), 3, rounding_mode="floor")]),
    "the last rows": lambda x: (x[torch.tensor(x.shape[0]) - 3 :], x[-torch.tensor(x.shape[0]) + 2 :], x[span(x) - 1]),
    "clamped": lambda x: x[: torch.tensor(x.shape[0]).clamp(max=7)] + x[: torch.minimum(span(x), torch.tensor(7))],
    "beside an index": lambda x: x[: span(x), torch.tensor([0, 2])] * 2,
    "written": written,
    "written through a view": written_through_a_view,
    "put": put,
    "compared": lambda x: x + 1 if torch.arange(x.shape[0])[None].max() + 1 > 100 else x - 1,
    "rounded up": lambda x: x[: strides(x, torch.tensor(3), torch.ceil)],
    "rounded down": lambda x: x[: strides(x, torch.tensor(4), torch.floor)],
    "rounded up, of a sum with a factor": lambda x: (
        x.sum() * torch.ceil(torch.add(torch.tensor(x.shape[0]) / torch.tensor(3), 1, alpha=2)).to(torch.int64).item()
    ),
    "of both numbers": lambda x: torch.arange(span(x) - 3, span(x)) + x.sum(),
}


def compiled(function: Callable[..., Any]) -> Compiled:
    compile = pipeline.default(min_block_size=1).replace("build", unbuilt)
    return compile(Calls(function).eval(), args=(EXAMPLE,), dynamic_shapes=((ROWS,),))


def agrees(result: Compiled, function: Callable[[torch.Tensor], Any]) -> None:
    module = result.module(executor="reference")
    for rows in SIZES:
        x = torch.randn(rows, 3)
        torch.testing.assert_close(module(x), function(x), rtol=1e-5, atol=1e-5)


def is_one_engine(result: Compiled) -> bool:
    (rows,) = result.program.shapes.values()  # no number that data decides
    return [s.kind for s in result.partitioned.segments] == ["engine"] and (rows.min, rows.max) == (4, 20)


@pytest.mark.parametrize("name", KNOWN)
def test_numbers_made_of_sizes_are_known(name: str) -> None:
    result = compiled(KNOWN[name])
    assert is_one_engine(result), result.partitioned
    agrees(result, KNOWN[name])


def numbers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Products with numbers that are not the largest element's."""
    n, p, s = torch.tensor(x.shape[0]), torch.arange(x.shape[0]), x.sum()
    grid = p[:, None] + torch.arange(3)[None]
    read = [(-p).max(), (p * -2).max(), (5 - p).max(), torch.sub(5, p).max(), grid.max(), (p % 3).max(), p.min()]
    small = [n.to(torch.uint8) * 60, torch.div(n - 7, 2, rounding_mode="trunc"), torch.where(n > 5, n, 2 * n)]
    bools = [(n > 7) + n, (n != 5) * n, torch.tensor(True) + n]
    return tuple(s * number.item() for number in (*read, *small, *bools, (x > 0).sum() + n))


def test_no_other_numbers_are_taken_for_known() -> None:
    agrees(compiled(numbers), numbers)


@pytest.mark.parametrize(("most", "known"), [(2**21, True), (2**23, False)])
def test_numbers_of_large_floats_are_data(most: int, known: bool) -> None:
    """From 2**24 on, not every whole number is a float."""
    rows = {0: torch.export.Dim("rows", min=4, max=most)}
    model = Calls(lambda x: x.sum() * strides(x, torch.tensor(3), torch.ceil).item())
    program = pipeline.capture(model.eval(), (EXAMPLE,), dynamic_shapes=((rows,),))
    read = [node for node in program.graph.nodes if "item" in str(node.target) or "_local_scalar" in str(node.target)]
    assert known == all(is_determined_by_sizes(node) or not is_unknown(node.meta["val"]) for node in read)


def is_unknown(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and bool(free_unbacked_symbols(number))


@given(st.integers(1, 2**12), st.data())
def test_certain_ratios_are_rounded_as_floats_are(below: int, data: st.DataObject) -> None:
    """Sizes next to multiples, where the next whole number is nearest."""
    near = data.draw(st.integers(-2, 2)) + below * data.draw(st.integers(0, MAX_RATIO_SIZE // (4 * below)))
    more = data.draw(st.integers(-below, below))
    rounded, name = data.draw(st.sampled_from([(torch.ceil, "ceil"), (torch.floor, "floor")]))
    exact = Ratio(near, below, 1)
    exact = RATIO_RULES[torch.ops.aten.add.Tensor](exact, Ratio(more))
    assume(exact.is_rounding_certain)
    whole = RATIO_RULES[getattr(torch.ops.aten, name).default](exact)
    assert rounded(torch.tensor(near) / torch.tensor(below) + more) == whole.numerator


def overwritten(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Numbers of tensors that were written to."""
    filled, ranged, viewed = torch.tensor(x.shape[0]), torch.arange(x.shape[0]), torch.arange(x.shape[0])
    filled.fill_(3)
    halves = torch.tensor(x.shape[0]) / 2
    halves.add_(1.5)
    ranged[-1] = 2
    viewed[1:].mul_(-2)
    return tuple(x.sum() * number.item() for number in (filled, ranged.max(), viewed.max(), halves.ceil().long()))


def test_what_is_written_is_known_no_longer() -> None:
    agrees(compiled(overwritten), overwritten)


SLICED = pytest.mark.skipif(older_than(2, 13), reason="torch before 2.13 exports no slice by a tensor")


@pytest.mark.parametrize("name", [pytest.param("between", marks=SLICED), "item", "largest", "of both numbers"])
def test_an_exported_program_has_its_sizes_again(name: str) -> None:
    exported = export(Calls(KNOWN[name]), (EXAMPLE,), dynamic_shapes=((ROWS,),), strict=False)
    text = str(exported)
    assert "u0" in text
    result = pipeline.default(min_block_size=1).replace("build", unbuilt)(exported)
    assert is_one_engine(result), result.partitioned
    agrees(result, KNOWN[name])
    assert str(exported) == text


LEFT = r"shape\[0\] can only be 12: the captured model requires min\(16, .*shape\[0\]\) == 12"


@pytest.mark.parametrize("cast", [int, float, range])
def test_a_number_that_python_needs_is_a_guard(cast: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        number = cast(span(x))
        return x * (number if cast is not range else sum(number))

    with pytest.raises(pipeline.CaptureError, match=LEFT):
        compiled(function)


def test_a_guard_is_none_the_less_where_the_graph_is_traced_again() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()[: int(torch.sym_min(x.shape[0], 16))]
        y[0].add_(1)
        return y

    with pytest.raises(pipeline.CaptureError, match=LEFT):
        compiled(function)
