"""Ranges mean what the user said, however it was said; what breaks them is refused before anything runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline import Input, Program
from tests.shapes.test_sizes import Calls, compiled


def program(function: Callable[..., Any], args: tuple[Any, ...], dims: Any = None, **call: Any) -> Program:
    """What capture gives."""
    shapes = None if dims is None else (tuple(dims),)
    first = pipeline.default().until("decompose")
    return first(Calls(function).eval(), args=args, dynamic_shapes=shapes, **call)


def ranges(found: Program) -> list[str]:
    """Each input's dims that vary."""
    return [str(r) for p in found.inputs for d, r in zip(p.shape, p.ranges, strict=True) if not isinstance(d, int)]


def twice(x: torch.Tensor) -> torch.Tensor:
    """[N, 4] -> [N, 4]"""
    return x * 2


X = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (Dim("n", min=1, max=8), "1..3..8"),
        (Dim("n", min=2, max=8), "2..3..8"),
        (Dim("n", min=0, max=8), "0..3..8"),
        (Dim("n", max=8), "0..3..8"),
        (Dim("n"), "1..3..16"),
        (Dim.AUTO, "1..3..16"),
        (Dim.DYNAMIC, "1..3..16"),
        (Dim.AUTO(min=1, max=8), "1..3..8"),
        (Dim.DYNAMIC(max=8), "0..3..8"),
        (Dim.DYNAMIC(min=2), "2..3..16"),
    ],
    ids=str,
)
def test_a_dim_has_the_range_that_was_asked_for(entry: Any, found: str) -> None:
    assert ranges(program(twice, (X,), [{0: entry}])) == [found]


@pytest.mark.parametrize("entry", [Dim.STATIC, None, 3], ids=str)
def test_a_static_dim_stays_static(entry: Any) -> None:
    assert ranges(program(twice, (X,), [{0: entry}])) == []


def test_without_an_upper_bound_there_is_a_warning_that_names_the_dim(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        program(twice, (X,), [{0: Dim.AUTO}])
    assert "args_0.shape[0] has no upper bound; engines take 1 to 16: give a max" in caplog.text


@pytest.mark.parametrize("size", [0, 1])
def test_an_example_of_size_0_or_1_makes_nothing_static(size: int) -> None:
    found = program(twice, (torch.randn(size, 4),), [{0: Dim("n", min=0, max=8)}])
    assert ranges(found) == [f"0..{size}..8"]


def test_dims_tied_to_others_keep_their_ranges() -> None:
    n = Dim("n", min=1, max=8)
    both = program(lambda x, y: x[::4] + y, (torch.randn(8, 4), torch.randn(2, 4)), [{0: 4 * n}, {0: n}])
    assert ranges(both) == ["4..8..32", "1..2..8"]
    alone = program(lambda x: x.view(-1, 4) + 1, (torch.randn(8),), [{0: 4 * n}])
    assert ranges(alone) == ["4..8..32"]
    module = compiled(lambda x: x.view(-1, 4) + 1, [{0: 4 * n}], torch.randn(8)).module(executor="reference")
    for size in (4, 8, 20, 32):
        x = torch.randn(size)
        torch.testing.assert_close(module(x), x.view(-1, 4) + 1)
    with pytest.raises(pipeline.ShapeError, match="input args_0 has size 10 in dimension 0"):
        module(torch.randn(10))


class Two(nn.Module):
    """Of two inputs."""

    def forward(self, x: torch.Tensor, *, y: dict[str, torch.Tensor]) -> torch.Tensor:
        """[N, 4], {"a": [N, 4]} -> [N, 4]"""
        return x + y["a"]


def two(x: Any, y: Any, shapes: Any) -> Program:
    first = pipeline.default().until("decompose")
    return first(Two().eval(), args=(x,), kwargs={"y": {"a": y}}, dynamic_shapes=shapes)


RANGED = Input(min_shape=(1, 4), opt_shape=(3, 4), max_shape=(8, 4))


@pytest.mark.parametrize(
    ("y", "shapes"),
    [
        (X, {"x": None, "y": {"a": {0: Dim.AUTO(min=1, max=8)}}}),
        (X, {"x": {0: Dim.AUTO}, "y": {"a": {0: Dim.DYNAMIC}}}),
        (X, {"x": {0: Dim("n", min=1, max=8)}, "y": {"a": {0: Dim("n", min=1, max=8)}}}),
        (X, {"x": {0: Dim("n")}, "y": {"a": {0: Dim("n")}}}),
        (RANGED, {"x": {0: Dim("n")}, "y": {"a": {0: Dim("n")}}}),
        (RANGED, {"x": {0: Dim("n", max=8), 1: Dim.STATIC}, "y": None}),
        (RANGED, None),
        (Input((3, 4)), {"x": None, "y": {"a": {0: Dim.AUTO}}}),
    ],
    ids=range(8),
)
def test_inputs_and_dynamic_shapes_are_said_once_or_twice(y: Any, shapes: Any) -> None:
    found = two(RANGED, y, shapes)
    assert ranges(found) == ["1..3..8", "1..3..8"]
    assert len(found.shapes) == 1


def test_a_collection_of_shapes_is_taken() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    shapes = torch.export.ShapesCollection()
    shapes[x] = shapes[y] = {0: Dim("n", min=1, max=8)}
    assert ranges(two(x, y, shapes)) == ["1..3..8", "1..3..8"]


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"x": {0: Dim("n", min=1, max=9)}, "y": None}, "1..8 by pipeline.Input, n = 1..9 by dynamic_shapes"),
        ({"x": {0: Dim.STATIC}, "y": None}, "dimension 0 of input x has two ranges: 1..8 by pipeline.Input, static"),
        ({"x": {0: 3}, "y": None}, "1..8 by pipeline.Input, 3 by dynamic_shapes"),
        ({"x": {1: Dim("m", max=4)}, "y": None}, "dimension 1 of input x has two ranges: 4..4"),
        ({"x": {0: Dim.AUTO(min=2)}, "y": None}, "1..8 by pipeline.Input, Dim.AUTO = 2..  by|Dim.AUTO = 2.. by"),
    ],
    ids=range(5),
)
def test_a_conflict_names_both(shapes: Any, says: str) -> None:
    with pytest.raises(pipeline.CaptureError, match=says) as caught:
        two(RANGED, X, shapes)
    assert "make the two ranges equal" in str(caught.value)


def test_one_dim_of_two_inputs_with_two_ranges_is_a_conflict() -> None:
    other = Input(min_shape=(1, 4), max_shape=(9, 4))
    with pytest.raises(pipeline.CaptureError, match=r"Dim 'n' .* 1..8 for dimension 0 of input x, 1..9 for .*'a'"):
        two(RANGED, other, {"x": {0: Dim("n")}, "y": {"a": {0: Dim("n")}}})


def test_a_branch_on_size_1_is_seen_and_not_taken_for_all_sizes(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 1 else x + 1

    with caplog.at_level(logging.WARNING):
        module = compiled(function, [{0: Dim("n", min=1, max=8)}], X).module(executor="reference")
    assert "args_0.shape[0] can only range from 2 to 8, not 1 to 8: the captured model requires args_0.shape[0] != 1"
    torch.testing.assert_close(module(X), X + 1)
    with pytest.raises(pipeline.ShapeError, match="size 1 in dimension 0; compiled for 2 to 8"):
        module(X[:1])


ONES: dict[str, Callable[[Any], Any]] = {
    "transposed and reshaped": lambda x: x.view(x.shape[0], 2, 2).transpose(0, 1).reshape(2 * x.shape[0], -1) * 2,
    "broadcast": lambda x: x[:, None] + x[None],
    "mean": lambda x: (x - x.mean(0)) / (x.var(0, correction=0) + 1),
    "matmul": lambda x: (x @ x.T).softmax(-1) @ x,
    "number as tensor": lambda x: x * torch.tensor(x.shape[0]),
    "convolution": lambda x: nn.functional.conv1d(x[:, None], torch.ones(2, 1, 3), padding=1),
    "rows": lambda x: x[1:].sum(0) + x[-1],
}


@pytest.mark.parametrize("name", ONES)
def test_what_is_right_for_2_is_right_for_1(name: str) -> None:
    function = ONES[name]
    module = compiled(function, [{0: Dim("n", min=1, max=8)}], X).module(executor="reference")
    for n in (1, 2, 8):
        x = torch.randn(n, 4)
        torch.testing.assert_close(module(x), function(x), rtol=1e-5, atol=1e-5)


def test_a_rank_that_hangs_on_size_1_is_not_promised() -> None:
    module = compiled(lambda x: x.squeeze(0) * 2, [{0: Dim("n", min=1, max=8)}], X).module(executor="reference")
    torch.testing.assert_close(module(X), X * 2)
    with pytest.raises(pipeline.ShapeError, match="compiled for 2 to 8"):
        module(X[:1])


def test_a_program_prints_no_address() -> None:
    """torch's sym_min is a function of Python, whose own form has one."""
    printed = str(program(lambda x: x[:, : torch.sym_min(x.shape[0], 3)], (torch.randn(4, 8),), [{0: Dim("n", max=8)}]))
    assert "torch.sym_min(" in printed and " at 0x" not in printed


def crossed(x: torch.Tensor) -> torch.Tensor:
    """[N, 9] -> [3 N, 3]; where N is 1, eager takes the other dim for that of three coordinates."""
    return torch.cross(x.reshape(-1, 3), x.reshape(-1, 3).flip(0))


@pytest.mark.filterwarnings("ignore:Using torch.cross")
def test_a_dim_that_hangs_on_size_3_is_not_promised() -> None:
    x = torch.randn(4, 9)
    module = compiled(crossed, [{0: Dim("n", min=1, max=8)}], x).module(executor="reference")
    torch.testing.assert_close(module(x), crossed(x))
    with pytest.raises(pipeline.ShapeError, match="compiled for 2 to 8"):
        module(x[:1])


@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic])
def test_a_dim_that_is_marked_varies(mark: Any) -> None:
    x = torch.randn(3, 4)
    mark(x, 0)
    module = pipeline.default()(torch.nn.ReLU().eval(), (x,)).module(executor="reference")
    for n in (1, 3, 16):
        assert torch.equal(module(torch.ones(n, 4)), torch.ones(n, 4))


@pytest.mark.parametrize("dims", [(), (0,), (-1,), ((0,),), ((),)])
def test_a_tensor_without_dims_can_be_squeezed(dims: Any) -> None:
    module = compiled(lambda x: x.sum().squeeze(*dims) * x, [{0: Dim("n", min=1, max=8)}], X).module("reference")
    torch.testing.assert_close(module(X[:3]), X[:3].sum() * X[:3])


def test_a_size_that_would_be_negative_is_not_promised() -> None:
    assert ranges(program(lambda x: x[1:] * 2, (X,), [{0: Dim("n", max=8)}])) == ["1..3..8"]
    clamped = compiled(lambda x: x[2:] * 2, [{0: Dim("n", max=8)}], X).module(executor="reference")
    for n in (0, 1, 2, 8):
        x = torch.randn(n, 4)
        torch.testing.assert_close(clamped(x), x[2:] * 2)


def test_divisibility_is_a_relation() -> None:
    result = compiled(lambda x: x.view(-1, 4) * 2, [{0: Dim("n", min=1, max=30)}], torch.randn(8))
    assert str(result.program.shapes).endswith("4..8..28 (args_0.shape[0])\n(args_0.shape[0] % 4) == 0")
    assert "(args_0.shape[0] % 4) == 0" in result.report()
    module = result.module(executor="reference")
    torch.testing.assert_close(module(torch.ones(28)), torch.ones(7, 4) * 2)
    with pytest.raises(
        pipeline.ShapeError, match=r"input args_0 has size 10 .*\(args_0.shape\[0\] % 4\) == 0"
    ) as caught:
        module(torch.ones(10))
    error = caught.value
    assert (error.input, error.dim, error.value, error.range) == ("args_0", 0, 10, (4, 28))


def test_relations_between_inputs_are_checked_before_anything_runs() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y]) + z

    n, m = Dim("n", min=1, max=8), Dim("m", min=1, max=8)
    args = (torch.randn(3, 4), torch.randn(2, 4), torch.randn(5, 4))
    result = compiled(function, [{0: n}, {0: m}, {0: Dim.AUTO(min=2, max=16)}], *args)
    module = result.module(executor="reference")
    torch.testing.assert_close(module(*args), function(*args))
    with pytest.raises(
        pipeline.ShapeError, match="input args_2 has size 6 in dimension 0; compiled for 5, as the size of"
    ):
        module(args[0], args[1], torch.randn(6, 4))
    with pytest.raises(pipeline.ShapeError, match="input args_1 has size 9 in dimension 0; compiled for 1 to 8"):
        module(args[0], torch.randn(9, 4), args[2])


def test_a_relation_fixes_a_size_that_each_input_dim_leaves_open() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        patches = torch.nn.functional.avg_pool2d(x, 2).flatten(1)
        rows = torch.cat([patches.new_zeros(x.shape[0], 2), patches], 1) + torch.arange(14.0)
        return rows.softmax(1)[:, 2:] * 2

    side = Dim.AUTO(min=4, max=16)
    result = compiled(function, [{0: Dim.AUTO(min=2, max=8), 1: side, 2: side}], torch.randn(3, 8, 6))
    assert not result.coverage.fallback
    module = result.module(executor="reference")
    for shape in ((3, 8, 6), (5, 6, 8), (2, 7, 9), (2, 4, 12)):
        x = torch.randn(shape)
        torch.testing.assert_close(module(x), function(x))
    with pytest.raises(pipeline.ShapeError, match="== 14"):
        module(torch.randn(3, 8, 8))


def test_an_exported_program_keeps_its_ranges() -> None:
    exported = torch.export.export(
        Calls(twice).eval(), (X,), dynamic_shapes=(({0: Dim("n", min=1, max=8)},),), strict=False
    )
    found = pipeline.default().until("decompose")(exported)
    assert ranges(found) == ["1..3..8"]
    tuned = pipeline.default().until("decompose")(
        exported, args=(Input(min_shape=(1, 4), opt_shape=(7, 4), max_shape=(8, 4)),)
    )
    assert ranges(tuned) == ["1..7..8"]


def test_an_exported_program_that_was_saved_keeps_its_relations(tmp_path: Path) -> None:
    call = Calls(lambda x: x.view(-1, 4) * 2).eval()
    exported = torch.export.export(call, (torch.randn(8),), dynamic_shapes=(({0: Dim.AUTO(max=30)},),), strict=False)
    torch.export.save(exported, tmp_path / "rows.pt2")
    for program in (exported, torch.export.load(tmp_path / "rows.pt2")):
        module = pipeline.default()(program).module(executor="reference")
        torch.testing.assert_close(module(torch.ones(28)), torch.ones(7, 4) * 2)
        with pytest.raises(pipeline.ShapeError, match="size 10 in dimension 0; compiled for 4 to 28, sizes that"):
            module(torch.ones(10))


def test_segments_have_derived_ranges() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x, x[::2]])
        return torch.relu(torch.tanh(y)[:-1] * 2).reshape(-1) + 1

    result = compiled(
        function, [{0: Dim("n", min=1, max=9)}], torch.randn(4, 3), torch_executed_ops={"aten.tanh.default"}
    )
    last = result.partitioned.engine_segments[-1].inputs[0]
    assert str(last.ranges[0]) == "2..9..22"


class Remembers(torch.nn.Module):
    """Remembers the shape of its last call, or its last dims, as heads of detectors do, and what it makes for it."""

    def __init__(self, last: int, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.last, self.make, self.shape = last, make, torch.Size(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.shape != x.shape[-self.last :]:
            self.grid, self.shape = self.make(x), x.shape[-self.last :]
        return x * self.grid


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("last", [1, 2])
def test_a_model_that_remembers_its_last_shape_takes_others(dims: tuple[int, ...], last: int) -> None:
    model, x = Remembers(last, lambda x: torch.arange(x.shape[-1]) / x.shape[-last]).eval(), torch.rand(2, 3)
    model(x)
    kept = model.shape, model.grid
    shapes = ({dim: Dim(f"n{dim}", min=1, max=8) for dim in dims},)
    module = pipeline.default()(model, (x,), dynamic_shapes=shapes).module("reference")
    assert model.shape is kept[0] and model.grid is kept[1]
    for size in (2, 1, 5):
        y = torch.rand([size if dim in dims else n for dim, n in enumerate(x.shape)])
        torch.testing.assert_close(module(y), model(y), rtol=0, atol=0)


def test_what_is_made_of_the_last_call_is_an_error_with_its_line() -> None:
    model, x = Remembers(2, lambda x: x[0] * 2).eval(), torch.rand(2, 3)
    model(x)
    with pytest.raises(
        pipeline.CaptureError, match=r"state between calls.*test_ranges\.py:\d+, self\.grid, self\.shape ="
    ):
        pipeline.capture(model, (x,), dynamic_shapes=({0: Dim("n", min=1, max=8)},))


def test_a_size_that_the_model_fixes_is_an_error_with_its_line() -> None:
    class Fixed(torch.nn.Module):
        shape: torch.Size

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if self.shape == x.shape else x.relu()

    fixed = Fixed()
    fixed.shape = torch.Size((2, 3))
    with pytest.raises(pipeline.CaptureError, match=r"test_ranges\.py:\d+, return x \+ 1 if self\.shape == x\.shape"):
        pipeline.capture(fixed, (torch.rand(2, 3),), dynamic_shapes=({0: Dim("n", min=1, max=8)},))
