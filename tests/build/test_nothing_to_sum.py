"""Sums that may have nothing to sum: what their kernels compute besides is written all the same."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import pipeline
from pipeline.trt import CAPABILITIES

BATCH, FIRST, SECOND = (Dim(name, min=least, max=9) for name, least in (("n", 2), ("first", 0), ("second", 0)))
DIMS: Final = ({0: BATCH}, {0: FIRST}, {0: SECOND})
PLANS = pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="plans of another TensorRT hold no sources")


class Sent(nn.Module):
    """Adds rows to places that two vectors of positions name, of which one may be empty."""

    def forward(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """[N, 8], [F], [S] -> [N, 8]"""
        found = torch.zeros_like(x).index_add(0, first, x[first])
        return found.index_add(0, second, x[second] * 2)


def example() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(5, 8), torch.tensor([1, 1, 4]), torch.tensor([2, 0])


def calls() -> Iterator[tuple[Tensor, ...]]:
    """One vector empty, the other, both, and none."""
    x, first, second = example()
    yield x, first[:0], second
    yield x, first, second[:0]
    yield x, first[:0], second[:0]
    yield x[:3], first[:2], second


def kept(x: Tensor) -> Tensor:
    """The columns whose first element is positive: [N, K] -> [N, as many as data says]"""
    return x[:, x[0] > 0]


def columns(rows: int, of_four: int) -> Tensor:
    """Of whose four columns so many are kept."""
    x = torch.randn(rows, 4)
    x[0] = torch.where(torch.arange(4) < of_four, x[0].abs() + 0.1, -1.0)
    return x


class Beside(nn.Module):
    """What is reduced along a dim that data may leave empty, and a softmax of the positions that its kernel
    computes."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.reduced = REDUCED[form]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, K] -> the result, and [N]"""
        places = torch.arange(x.shape[0], device=x.device).to(x.dtype).sin()
        return self.reduced(places[:, None] * kept(x)), places.softmax(0)


REDUCED: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "mean of all": lambda x: x.mean(),
    "mean, the dim kept": lambda x: x.mean((0, 1), keepdim=True),
    "product": lambda x: x.prod(1),
    "any": lambda x: x.any(1),
    "all": lambda x: (x > 0).all(1),
    "norm": lambda x: x.norm(dim=1),
    "deviation": lambda x: x.std(1, correction=0),
}
BROADCAST: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "product": lambda x: torch.relu(x.exp() * 2 + x) @ x.mT.cos(),
    "choice": lambda x: torch.where(x > 0, x, -1.0),
    "softmax": lambda x: x.softmax(0),
    "sorted": lambda x: x.sort(1)[0],
    "running sum": lambda x: x.cumsum(0),
    "sum of rows": lambda x: x.sum(0),
}


class Backwards(nn.Module):
    """Along a dim that data may leave empty."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, K] -> [N, K]"""
        return kept(x).flip(1) * 2


class Broadcast(nn.Module):
    """What is computed of a vector along a dim that data may leave empty, and the vector, of positions or an input."""

    def __init__(self, form: str, of_positions: bool) -> None:
        super().__init__()
        self.computed, self.of_positions = BROADCAST[form], of_positions

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """[N, K], [N] -> the result, and [N, 1]"""
        places = torch.arange(x.shape[0], device=x.device).to(x.dtype) if self.of_positions else y
        vector = places.sin()[:, None]
        return self.computed(vector * kept(x)), vector * 1


ROWS: Final = {0: BATCH}


def compiled() -> pipeline.Compiled:
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=("8.0",))
    return compile(Sent().eval(), example(), dynamic_shapes=DIMS)


WRITES: Final = re.compile(r"\*\)__v\d+\)\[0 \+ \((__v\d+) \* 1\)\] = ")


def written_while_reading(plan: bytes) -> set[str]:
    """Kernels of sums that write to memory, where they read what is summed, something for each result."""
    found, text = set(), plan.decode("latin1")
    for match in re.finditer(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", text):
        source = text[text.rfind("\0", 0, match.start()) : text.find("\0", match.start())]
        for part in source.split("template<>")[1:]:
            if "read_input<" in part.partition("{")[0]:
                places = WRITES.findall(part.partition("\nextern")[0])
                if any(re.search(rf"{place} = \(.*blockIdx", part) for place in places):
                    found.add(match[1])
    return found


def test_it_agrees_with_eager() -> None:
    run = compiled().module("reference")
    for given in calls():
        torch.testing.assert_close(run(*given), Sent()(*given))


@PLANS
def test_one_more_is_sent_where_there_may_be_none() -> None:
    """The places are written by the threads that read what is summed, of which each kernel then has one."""

    def slices(least: int) -> int:
        dims = ({0: BATCH}, {0: Dim("first", min=least, max=9)}, {0: Dim("second", min=least, max=9)})
        found = pipeline.default(compute_capabilities=("8.0",))(Sent().eval(), example(), dynamic_shapes=dims)
        assert written_while_reading(bytes(found.engines[0].plan)), "TensorRT has learned it: nothing need be added"
        return found.networks[0].kinds()["SLICE"]

    assert slices(0) > slices(2)


def made(model: nn.Module, *inputs: Tensor) -> pipeline.Compiled:
    return pipeline.default(min_block_size=1)(model.eval(), inputs, dynamic_shapes=(ROWS,) * len(inputs))


def rows(model: nn.Module, count: int, wide: int) -> tuple[Tensor, ...]:
    """So many rows of so many columns, and what else the model takes."""
    return (torch.randn(count, wide), torch.randn(count))[: 2 if isinstance(model, Broadcast) else 1]


def made_for_any(model: nn.Module, *given: Tensor, least: int = 0) -> pipeline.Compiled:
    """For inputs of any number of columns."""
    shapes = ({**ROWS, 1: Dim("columns", min=least, max=8)}, ROWS)[: len(given)]
    return pipeline.default(min_block_size=1)(model.eval(), given, dynamic_shapes=shapes)


def count(compiled: pipeline.Compiled, kind: str, mode: str = "") -> int:
    layers = [layer for network in compiled.networks for layer in network.layers]
    return sum(layer.kind == kind and mode in str(layer.attribute("mode", "")) for layer in layers)


@pytest.mark.parametrize("form", REDUCED)
def test_no_reduction_has_nothing_to_reduce(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads one element more, of no effect, where data may leave it none."""
    model = Beside(form)
    run = made(model, columns(6, 3)).module("reference")
    for x in (columns(6, 3), columns(3, 1), columns(4, 0)):
        torch.testing.assert_close(run(x), model(x), equal_nan=True)
    assert count(made(model, columns(6, 3)), "SLICE", "FILL")
    monkeypatch.setattr(sys.modules[__name__], "kept", lambda x: x)
    assert not count(made(model, columns(6, 3)), "SLICE", "FILL")


@pytest.mark.parametrize("of_positions", [True, False], ids=["positions", "input"])
@pytest.mark.parametrize("form", BROADCAST)
def test_what_is_broadcast_over_nothing_is_written_before(
    form: str, of_positions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, y = Broadcast(form, of_positions), torch.randn(6)
    compiled = made(model, columns(6, 3), y)
    run = compiled.module("reference")
    for x in (columns(6, 3), columns(3, 1), columns(4, 0)):
        torch.testing.assert_close(run(x, y[: len(x)]), model(x, y[: len(x)]))
    monkeypatch.setattr(sys.modules[__name__], "kept", lambda x: x)
    assert count(compiled, "CUMULATIVE") == count(made(model, columns(6, 3), y), "CUMULATIVE") + 1


def test_nothing_is_turned_round() -> None:
    """From its first element on, where there is no last one."""
    model = Backwards()
    run = made(model, columns(6, 3)).module("reference")
    for x in (columns(6, 3), columns(3, 1), columns(4, 0)):
        assert torch.equal(run(x), model(x))


def all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data leaves none out; what there is, the call's sizes decide."""
    monkeypatch.setattr(sys.modules[__name__], "kept", lambda x: x)


ANY: Final = {
    **{form: Beside(form) for form in ("mean", "norm", "any")},
    **{form: Broadcast(form, form == "product") for form in ("product", "choice", "sum of rows")},
}


@pytest.mark.parametrize("form", ANY)
def test_inputs_of_no_elements_beside_others(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    all_columns(monkeypatch)
    model = ANY[form]
    kind = ("SLICE", "FILL") if isinstance(model, Beside) else ("CUMULATIVE",)
    given = rows(model, 6, 3)
    compiled = made_for_any(model, *given)
    assert count(compiled, *kind) == count(made_for_any(model, *given, least=1), *kind) + 1
    run = compiled.module("reference")
    for given in (rows(model, 6, 3), rows(model, 3, 0), rows(model, 4, 1)):
        torch.testing.assert_close(run(*given), model(*given), equal_nan=True)


class Rows(nn.Module):
    """Positions are added to each row, and what comes of it is normalized."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, L, 8] -> [N, 8]"""
        places = torch.arange(x.shape[1], device=x.device).to(x.dtype).sin()[:, None]
        return ((x + places).softmax(1) * x).mean(1)


class Longer(nn.Module):
    """A cache, which is empty at first, and what a step adds."""

    def forward(self, cache: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """[N, L, 8], [N, 1, 8] -> [N, L + 1, 8], [N, 1, 8]"""
        together = torch.cat((cache, step.sin()), 1)
        return together, (step @ together.mT).softmax(-1) @ together


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Rows(), (torch.randn(4, 5, 8),)), (Longer(), (torch.randn(4, 5, 8), torch.randn(4, 1, 8)))],
    ids=["rows", "cache"],
)
def test_what_leaves_nothing_else_is_as_it_was(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Of no rows there is nothing to compute, and a step is computed without those before."""

    def network(least: int) -> list[str]:
        batch, length = Dim("batch", min=least, max=8), Dim("length", min=least, max=8)
        shapes = [{0: batch, 1: length}, {0: batch}][: len(inputs)]
        found = pipeline.default(min_block_size=1)(model.eval(), inputs, dynamic_shapes=tuple(shapes)).networks[0]
        return [str(layer) for layer in found.layers]

    assert network(0) == network(1)
