"""Sizes that data decides: PyTorch runs what makes them (RTX), and engines go on with them, with derived ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import pipeline
from pipeline.stages.refit_map import refit_map
from pipeline.stages.unbuilt import unbuilt
from pipeline.trt import CAPABILITIES
from tests.shapes.test_sizes import Calls, compiled

ROWS = {0: Dim("rows", min=1, max=9)}


def nms(boxes: torch.Tensor) -> torch.Tensor:
    """Greedy, by hand: a box stays if no better one overlaps it by half. [N, 4] -> [K, 4], by decreasing width."""
    order = (boxes[:, 0] - boxes[:, 2]).argsort(stable=True)
    boxes = boxes[order]
    low, high = (
        torch.maximum(boxes[:, None, :2], boxes[None, :, :2]),
        torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:]),
    )
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    shared = (high - low).clamp(min=0).prod(2)
    over = (shared / (area[:, None] + area[None] - shared)).triu(1) > 0.5
    return boxes[~over.any(0)]


CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "nonzero": (lambda x: torch.relu(x.nonzero() * 2.0 - 1) @ torch.ones(2, 3) + 1, "0..18..36"),
    "mask": (lambda x: torch.relu(x[x > 0] * 2 - 1) * 3 + 1, "0..18..36"),
    "mask of rows": (lambda x: torch.softmax(x[x.sum(1) > 0] @ torch.ones(4, 3), -1) * 2 + 1, "0..4..9"),
    "masked_select": (lambda x: torch.relu(x.masked_select(x[:, :1] > 0) * 2 - 1) * 3 + 1, "0..18..36"),
    "masked_select, broadcast": (lambda x: torch.relu(x[:, :1].masked_select(x[:1] > 0) * 2 - 1) * 3 + 1, "0..18..36"),
    "unique": (lambda x: torch.relu(torch.unique(x.round()) * 2 - 1) * 3 + 1, "0..18..36"),
    "where": (lambda x: torch.relu(torch.where(x > 0)[1] * 2.0 - 1) * 3 + 1, "0..18..36"),
    "suppressed boxes": (lambda x: nms(torch.cat([x[:, :2], x[:, :2] + x[:, 2:].abs() + 0.1], 1)) * 2 + 1, "0..4..9"),
    "cut to length": (lambda x: torch.relu(x[x > 0][: x.shape[0]] * 2 - 1) * 3 + 1, "0..18..36"),
    "twice": (lambda x: torch.relu(torch.cat([x[x > 0], x[x < 0]]) * 2 - 1) * 3 + 1, "0..18..36"),
}


@pytest.mark.parametrize("name", CASES)
def test_engines_go_on_with_sizes_that_data_decides(name: str) -> None:
    function, range = CASES[name]
    result = compiled(function, [ROWS], torch.randn(4, 4))
    last = result.partitioned.segments[-1]
    assert last.kind == "engine", str(result.partitioned)
    if not CAPABILITIES.nonzero:
        symbols = [s for s in result.program.shapes if s.startswith("u")]
        assert {str(result.program.shapes[s]) for s in symbols} == {range}
        assert any(str(d).startswith("u") or "u0" in str(d) for p in last.inputs for d in p.shape)
    module = result.module(executor="reference")
    for x in (torch.randn(4, 4), torch.randn(9, 4), torch.rand(9, 4) + 0.1, -torch.rand(1, 4) - 0.1, torch.randn(1, 4)):
        torch.testing.assert_close(module(x), function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("unique", "suppressed boxes")])
@pytest.mark.usefixtures("runs_nonzero")
def test_where_tensorrt_runs_nonzero_there_is_one_network(name: str) -> None:
    """What the tensorrt package would be given, on the reference executor."""
    function, _ = CASES[name]
    to_networks = pipeline.default(require_full_compilation=True).until("convert")
    converted = to_networks(Calls(function).eval(), args=(torch.randn(4, 4),), dynamic_shapes=((ROWS,),))
    assert len(converted.networks) == 1
    assert "NON_ZERO" in converted.networks[0].kinds()
    module = refit_map(unbuilt(converted)).module("reference")
    for x in (torch.randn(4, 4), torch.rand(9, 4) + 0.1, -torch.rand(1, 4) - 0.1):
        torch.testing.assert_close(module(x), function(x), rtol=1e-5, atol=1e-5)


def test_a_bound_that_the_model_states_is_the_engines() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        found = x[x > 0]
        torch._check(found.shape[0] <= 6)
        return torch.relu(found * 2 - 1) * 3 + 1

    result = compiled(function, [ROWS], torch.randn(4, 4))
    assert str(result.partitioned.segments[-1].inputs[0].ranges[0]) == "0..3..6"
    module = result.module(executor="reference")
    few = torch.tensor([[1.0, -1, 2, -2]])
    torch.testing.assert_close(module(few), function(few))
    with pytest.raises(pipeline.ExecutionError, match=r"index has the data-dependent size 8; compiled for 0 to 6"):
        module(torch.ones(2, 4))


def test_pieces_are_as_long_as_the_whole_at_most() -> None:
    """Where torch.export knows no bound of the whole, the engine's is that of the pieces too."""

    def weighted(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return torch.cat([piece * (i + 1) + 1 for i, piece in enumerate(x.split(counts.tolist()))])

    result = compiled(weighted, [{0: Dim.AUTO}, None], torch.randn(20, 4), torch.tensor([3, 2, 15]))
    for each in ([3, 0, 33], [0, 36, 0]):
        x, counts = torch.randn(36, 4), torch.tensor(each)
        torch.testing.assert_close(result(x, counts), weighted(x, counts))


def test_pieces_that_are_one_again_fit_the_whole() -> None:
    """The sizes that an engine is tuned for have to: TensorRT refuses to build it otherwise."""

    def weighted(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        pieces = x.split(counts.tolist())
        return torch.cat([piece * (i + 1) + 1 for i, piece in enumerate(pieces)]) * x

    result = compiled(weighted, [{0: Dim("n", min=2, max=50)}, None], torch.randn(20, 4), torch.tensor([3, 2, 15]))
    opts = [symbol.range.opt for name, symbol in result.program.shapes.symbols.items() if name.startswith("u")]
    assert sum(opts) == 20 and max(opts) - min(opts) <= 1
    for each in ([3, 0, 33], [0, 36, 0]):
        x, counts = torch.randn(36, 4), torch.tensor(each)
        torch.testing.assert_close(result(x, counts), weighted(x, counts))


def test_pieces_fit_the_whole_in_each_profile() -> None:
    """TensorRT refuses to build an engine whose sizes do not fit together in one."""

    def weighted(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        pieces = x.split(counts.tolist())
        return torch.cat([piece * (i + 1) + 1 for i, piece in enumerate(pieces)]) * x

    x = pipeline.Input(profiles=[((1, 4), (1, 4), (2, 4)), ((3, 4), (40, 4), (50, 4))])
    counts = pipeline.Input(shape=(3,), dtype=torch.int64)
    result = pipeline.default(min_block_size=1)(Calls(weighted).eval(), (x, counts))
    for profile, whole in zip(result.program.profiles, (1, 40), strict=True):
        assert sum(each.opt for name, each in profile.items() if name.startswith("u")) == whole
    run = result.module("reference")
    for each in ([0, 1, 0], [2, 0, 0], [3, 0, 33]):
        rows = torch.randn(sum(each), 4)
        torch.testing.assert_close(run(rows, torch.tensor(each)), weighted(rows, torch.tensor(each)))


def test_rows_of_data_beside_as_many_of_known_number() -> None:
    """A broadcast has the size that is known: ``[u0 + u1 + u2, 4] * [36, 1]``."""

    def weighted(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        pieces = x.split(counts.tolist())
        return torch.cat([piece * (i + 1) + 1 for i, piece in enumerate(pieces)]) * x[:, :1]

    result = compiled(weighted, [None, None], torch.randn(36, 4), torch.tensor([3, 2, 31]))
    for each in ([3, 0, 33], [0, 36, 0]):
        x, counts = torch.randn(36, 4), torch.tensor(each)
        torch.testing.assert_close(result(x, counts), weighted(x, counts))


def test_pieces_are_tuned_for_within_their_ranges() -> None:
    """Beside a piece of known size, and where there is more of one than its share."""

    def weighted(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        first, second = counts.tolist()
        torch._check(first >= 8)
        pieces = x.split([4, first, second])
        return torch.cat([piece * (i + 1) + 1 for i, piece in enumerate(pieces)])

    result = compiled(weighted, [{0: Dim("n", min=12, max=50)}, None], torch.randn(14, 4), torch.tensor([9, 1]))
    ranges = [symbol.range for name, symbol in result.program.shapes.symbols.items() if name.startswith("u")]
    assert [(r.min, r.opt) for r in ranges] == [(8, 8), (0, 5)]
    x, counts = torch.randn(36, 4), torch.tensor([20, 12])
    torch.testing.assert_close(result(x, counts), weighted(x, counts))


def test_repeats_have_a_bound_by_default_and_an_error_beyond_it(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor, repeats: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.repeat_interleave(x, repeats, 0) * 2 - 1) * 3 + 1

    result = compiled(function, [ROWS, ROWS], torch.randn(4, 4), torch.tensor([1, 0, 2, 3]))
    assert "repeat_interleave depends on data and has no upper bound; engines accept sizes up to 1024" in caplog.text
    assert result.partitioned.segments[-1].kind == "engine"
    module, x = result.module(executor="reference"), torch.randn(2, 4)
    for repeats in (torch.tensor([3, 4]), torch.tensor([0, 0]), torch.tensor([1024, 0])):
        torch.testing.assert_close(module(x, repeats), function(x, repeats))
    with pytest.raises(pipeline.ExecutionError, match="size 1025"):
        module(x, torch.tensor([1024, 1]))


def test_a_size_that_data_decides_comes_back_as_an_int() -> None:
    def function(x: torch.Tensor) -> Any:
        found = x[x > 0] * 2
        return found + 1, found.shape[0], found.shape[0] * x.shape[0]

    module = compiled(function, [ROWS], torch.randn(4, 4)).module(executor="reference")
    x = torch.randn(5, 4)
    torch.testing.assert_close(module(x), function(x))


class _AsManyAsSaid(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counted = torch.arange(0.0, n.item())
        return x * 2, torch.cat([counted, counted]) + 1


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch.export takes a float of data as a size from 2.13 on")
def test_a_size_that_a_number_decides_without_a_bound_stays_in_pytorch() -> None:
    """No profile has such a size; engines were asked for one of -4294967295."""
    model, args = _AsManyAsSaid().eval(), (torch.randn(3), torch.tensor(4.7))
    compiled = pipeline.default(min_block_size=1)(model, args)
    fallback = {each.node: each.reason for each in compiled.coverage.fallback}
    assert set(fallback) == {"item", "arange", "cat", "add"}
    assert "that depends on data and has no bound" in fallback["add"]
    for value in (4.7, 9.2):
        expected, found = model(args[0], torch.tensor(value)), compiled(args[0], torch.tensor(value))
        assert all(map(torch.equal, expected, found))


class _SizesOfAFloatLater(torch.nn.Module):
    """A size made of a float of the data is an argument in a later PyTorch segment, after an engine."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        counted = torch.arange(0.0, n.item())
        scale = torch.softmax(x @ x * counted.sum(), -1).amax()
        return (counted * scale).reshape(counted.shape[0], 1).expand(counted.shape[0], 2) + scale


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch.export takes a float of data as a size from 2.13 on")
def test_a_float_that_data_decides_reaches_later_segments() -> None:
    model, args = _SizesOfAFloatLater().eval(), (torch.randn(3, 3), torch.tensor(4.7))
    compiled = pipeline.default(min_block_size=1)(model, args)
    assert [segment.kind for segment in compiled.partitioned.segments] == ["torch", "engine", "torch"]
    for value in (4.7, 9.2):
        torch.testing.assert_close(compiled(args[0], torch.tensor(value)), model(args[0], torch.tensor(value)))


def of_numbers(made: Callable[..., torch.Tensor], *numbers: int) -> pipeline.Compiled:
    """A program that computes with a tensor whose sizes come of numbers in the data, from 0 to 1000 each."""

    def function(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        read = given.tolist()
        for number in read:
            torch._check(number >= 0)
            torch._check(number <= 1000)
        return made(x, *read).exp().relu() * 2 + 1

    x = torch.linspace(-0.02, 0.02, 48)
    program = compiled(function, [None, None], x, torch.tensor(numbers))
    run = program.module(executor="reference")
    torch.testing.assert_close(run(x, torch.tensor(numbers)), function(x, torch.tensor(numbers)))
    return program


QUOTIENTS: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...], int]] = {
    "one": (lambda x, a: torch.arange(48 // a) * x[0], (6,), 48),
    "up to a multiple": (lambda x, a: torch.arange(48 // a * a) * x[0], (6,), 48),
    "a product": (lambda x, a, b: torch.arange(48 // a * (8 // b)) * x[0], (6, 4), 384),
    "a sum": (lambda x, a, b: torch.arange(48 // a * a + 8 // b * b) * x[0], (6, 4), 56),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_sizes_divided_by_numbers_have_bounds(name: str) -> None:
    """No call divides by 0. TensorRT was given sizes up to 9223372036854775807."""
    made, numbers, most = QUOTIENTS[name]
    program = of_numbers(made, *numbers)
    ports = [port for segment in program.partitioned.engine_segments for port in segment.inputs]
    profiles = [profile for network in program.networks for profile in network.profiles]
    assert {high for each in profiles for *_, high in each.ranges} == {(most,)}, ports


def test_sizes_that_may_be_larger_than_any_profile_stay_in_pytorch() -> None:
    program = of_numbers(lambda x, a, b, c, d: torch.arange(a * b * c * d) * x[0], 1, 2, 3, 4)
    assert "that depends on data and has no bound" in str(program.coverage.fallback)
    assert not any(network.profiles for network in program.networks)


def test_sizes_that_only_data_makes_equal_meet_in_pytorch() -> None:
    """TensorRT refused those that it was to tune for, and what came next had 48 rows in the network and not in the
    graph."""

    def added(x: torch.Tensor, a: int, b: int) -> torch.Tensor:
        torch._check(a * b == x.shape[0])
        return (torch.arange(a * b) * 0.01 + x) * 2

    reasons = {each.node: each.reason for each in of_numbers(added, 6, 8).coverage.fallback}
    assert "sizes item*item_1 and 48 in one dim, and only the data decides whether they are equal" in reasons["add"]


def test_a_size_beyond_what_profiles_have_is_refused_in_words() -> None:
    dims, executed = {0: Dim("rows", max=2**17), 1: Dim("columns", max=2**17)}, {"aten.reshape.default"}
    why = r"args_0\.shape\[0\]\*args_0\.shape\[1\] of its input reshape has sizes up to 17179869184, and a size in"
    with pytest.raises(pipeline.BuildError, match=why):
        compiled(lambda x: x.reshape(-1).exp() + 1, [dims], torch.randn(3, 4), torch_executed_ops=executed)


SIZED_BY_VALUES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "bincount": (lambda x: torch.bincount(x).float().relu() * 2 + 1, torch.tensor([1, 3001]), torch.tensor([4, 0, 4])),
    "bincount of bytes": (
        lambda x: torch.bincount(x, minlength=3).relu() * 2 + 1,
        torch.tensor([1, 200], dtype=torch.uint8),
        torch.tensor([0, 1], dtype=torch.uint8),
    ),
    "bincount with weights": (
        lambda x: torch.bincount(x, x / 2).relu() * 2 + 1,
        torch.tensor([1, 1500], dtype=torch.int32),
        torch.tensor([3, 3], dtype=torch.int32),
    ),
    "classes": (
        lambda x: torch.nn.functional.one_hot(x).float().relu() * 2 + 1,
        torch.tensor([1, 3001]),
        torch.tensor([4, 0, 4]),
    ),
    "repeats": (lambda x: x.repeat_interleave(x).float().relu() * 2 + 1, torch.tensor([0, 1500]), torch.tensor([3, 2])),
}


@pytest.mark.parametrize("dims", [{}, {0: Dim("n", min=1, max=4)}], ids=["one length", "any length"])
@pytest.mark.parametrize("name", SIZED_BY_VALUES)
def test_a_program_runs_its_example_though_values_decide_the_size(name: str, dims: Any) -> None:
    function, example, other = SIZED_BY_VALUES[name]
    module = compiled(function, [dims], example).module(executor="reference")
    for x in (example, other[:2], *([other, other[:1]] if dims else [])):
        torch.testing.assert_close(module(x), function(x))
