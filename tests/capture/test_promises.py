"""What a program says that it takes, it takes: sizes that a model computes by ``int`` and ``/`` included."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from torch.export import Dim
from torch.nn import functional as F  # noqa: N812

import pipeline
from pipeline.runtime.inputs import bind_symbols
from pipeline.stages.unbuilt import unbuilt
from tests.improvements.programs import values

BATCHES: Mapping[str, Callable[..., Any]] = {
    "int of a quotient of a quotient": lambda n, h, w, k: int(n / (h * w / k / k)),
    "int of a quotient of a product": lambda n, h, w, k: int(n * k * k / (h * w)),
    "floor of a quotient": lambda n, h, w, k: math.floor(n / ((h // k) * (w // k))),
    "a quotient of ints": lambda n, h, w, k: n // (h * w // k // k),
    "int of what is whole": lambda n, h, w, k: int(n // (h // k) // (w // k)),
}
"""How models tell the batch from the number of windows."""


class Windows(torch.nn.Module):
    """Cuts images into windows and puts them together again, as Swin and HAT do."""

    def __init__(self, batch: str, k: int) -> None:
        super().__init__()
        self.batch, self.k = BATCHES[batch], k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [batch, height, width, channels]."""
        k = self.k
        b, h, w, c = x.shape
        windows = x.view(b, h // k, k, w // k, k, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, k, k, c).relu()
        n = self.batch(windows.shape[0], h, w, k)
        y = windows.view(n, h // k, w // k, k, k, -1).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, -1)
        return y.view(b, h * w, c) + x.view(b, h * w, c)


def promised(model: torch.nn.Module, x: torch.Tensor, ends: Mapping[int, tuple[int, int]], step: int) -> None:
    """Capture for sizes between ends, in steps behind the first dim, and call with each of the ends."""
    names = {d: Dim(f"s{d}", min=low, max=high) for d, (low, high) in ends.items()}
    dims = {d: step * dim if d and step > 1 else dim for d, dim in names.items()}
    program = pipeline.capture(model.eval(), (x,), dynamic_shapes=(dims,))
    for point in itertools.product(*ends.values()):
        shape = list(x.shape)
        for dim, size in zip(ends, point, strict=True):
            shape[dim] = size * (step if dim else 1)
        y = torch.randn(shape)
        bind_symbols(program, (y,))
        torch.testing.assert_close(values(program, y)[0], model(y), rtol=0, atol=0)


@settings(phases=[Phase.generate], max_examples=max(3, settings.default.max_examples // 4))
@given(st.sampled_from([*BATCHES]), st.sampled_from([2, 4]), st.data())
def test_what_a_program_promises_it_takes(batch: str, k: int, data: st.DataObject) -> None:
    """For windows of images whose batch, height and width vary, all or some of them."""
    dims = data.draw(st.sets(st.integers(0, 2), min_size=1))
    low = {d: data.draw(st.integers(1, 2)) for d in sorted(dims)}
    ends = {d: (first, first + data.draw(st.integers(2, 5))) for d, first in low.items()}
    shape = [data.draw(st.integers(*ends[d])) if d in dims else 3 for d in range(3)]
    promised(Windows(batch, k), torch.randn(shape[0], k * shape[1], k * shape[2], 4), ends, k)


class Halves(torch.nn.Module):
    """Takes a part of the rows."""

    def __init__(self, count: Callable[[Any], Any]) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The first rows."""
        return x[: self.count(x.shape[0])] * 2


@pytest.mark.parametrize(
    "count",
    [
        lambda n: int(n / 2),
        lambda n: int((n + 6) // 4),
        lambda n: int(math.sqrt(n)),
        lambda n: int(n * 0.7),
        lambda n: math.ceil(n / 3),
        lambda n: int(n**0.5),
    ],
)
def test_numbers_that_do_not_divide_evenly_vary_too(count: Callable[[Any], Any]) -> None:
    promised(Halves(count), torch.randn(6, 4), {0: (1, 9)}, 1)


def windows(x: torch.Tensor) -> torch.Tensor:
    k, (n, c) = 2, x.shape
    parts = F.pad(x, (0, 0, 0, -n % k)).view(-1, k, c).transpose(1, 2).relu()
    return parts.transpose(1, 2).reshape(-1, c)[:n]


def merged(x: torch.Tensor) -> torch.Tensor:
    even = F.pad(x, (0, 0, 0, x.shape[0] % 2))
    return torch.cat([even[0::2], even[1::2]], 1).view(-1, 2, 4).mean(1)


def shifted(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1:] = x[:-1] * 2
    return y


def in_a_branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, shifted, lambda x: x - 1, (x,))


def images(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of images, for rows."""
    return lambda x: function(x[None, None])[0, 0]


FORMS: Mapping[str, Callable[[Any], torch.Tensor]] = {
    "windows": windows,
    "merged": merged,
    "shifted": shifted,
    "in a branch": in_a_branch,
    "steps": lambda x: torch.cat([x[1::2], x[::3]]),
    "without ends": lambda x: x[1:-1],
    "of thirds": lambda x: x[x.shape[0] // 3 : 2 * x.shape[0] // 3],
    "halves": lambda x: torch.cat([x[x.shape[0] // 2 :], x[: x.shape[0] // 2], x[:3]]),
    "last half": lambda x: x[-(x.shape[0] // 2) :],
    "chunks": lambda x: torch.cat(x.chunk(2)[::-1]),
    "parts": lambda x: torch.cat([part.sum(0, keepdim=True) for part in x.tensor_split(3)]),
    "split": lambda x: x.split([x.shape[0] // 2, x.shape[0] - x.shape[0] // 2])[1],
    "resized": images(lambda x: F.interpolate(x, scale_factor=(1.5, 1), mode="bilinear")),
    "resized less": images(lambda x: F.interpolate(x, scale_factor=(0.7, 1), recompute_scale_factor=True)),
    "resized to": images(lambda x: F.interpolate(x, (x.shape[2] * 2 + 1, 4), mode="bilinear", align_corners=True)),
    "largest": images(lambda x: F.max_pool2d(x, (3, 1), (2, 1), (1, 0), ceil_mode=True)),
    "largest of all": lambda x: F.max_pool1d(x.T[None], x.shape[0])[0].T + x,
    "means": images(lambda x: F.avg_pool2d(x, (3, 1), (2, 1), (1, 0), ceil_mode=True)),
    "strided": lambda x: F.conv1d(x.T[None], torch.ones(4, 4, 3) / 12, stride=2, padding=1)[0].T,
    "unfolded": lambda x: x.unfold(0, 3, 2).amax(-1),
    "to a multiple": lambda x: F.pad(x, (0, 0, 0, (3 - x.shape[0] % 3) % 3)).view(-1, 3, 4).mean(1),
    "pairs": lambda x: (x[:, None] + x[None]).flatten(0, 1)[: 2 * x.shape[0]],
    "rounded": lambda x: torch.cat([x[: round(x.shape[0] * 0.4)], x[: int(math.sqrt(x.shape[0]))]]),
    "distance": lambda x: F.pad(x, (0, 0, 0, abs(x.shape[0] - 4))),
    "ordered": lambda x: x.sort(0).values - x.median(0, keepdim=True).values,
}
"""What models do with rows of four numbers."""


class Chain(torch.nn.Module):
    """Some forms, one after another."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [M, 4]"""
        for name in self.names:
            x = FORMS[name](x)
        return x * 2 + 1


def result(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    """Eager's result; None if eager takes no such size."""
    try:
        return cast(torch.Tensor, model(x))
    except Exception:  # as operators please
        return None


def stated_sizes_are_taken(names: Sequence[str], low: int, example: int, high: int) -> None:
    """Each size up to 1 beyond the range is either stated, and then computed as eager does, or refused."""
    model, x = Chain(names).eval(), torch.rand(example, 4)
    compile = pipeline.default(min_block_size=1).replace("build", unbuilt)
    compiled = compile(model, (x,), dynamic_shapes=({0: Dim("n", min=low, max=high)},))
    run, shapes = compiled.module("reference"), compiled.program.shapes
    symbol, stated = next((name, each.range) for name, each in shapes.symbols.items() if each.places == ("x.shape[0]",))
    for size in range(high + 2):
        y = torch.rand(size, 4)
        if stated.min <= size <= stated.max and all(each.holds({symbol: size}) for each in shapes.relations):
            if (expected := result(model, y)) is not None:
                torch.testing.assert_close(run(y), expected, rtol=1e-4, atol=1e-5)
        else:
            assert size != example
            with pytest.raises(pipeline.ShapeError):
                run(y)


@pytest.mark.parametrize("name", FORMS)
def test_a_stated_size_is_taken(name: str) -> None:
    for low, example in ((0, 5), (1, 6)):
        stated_sizes_are_taken([name], low, example, 9)


@settings(phases=[Phase.generate], max_examples=max(3, settings.default.max_examples // 3))
@given(st.lists(st.sampled_from([*FORMS]), min_size=2, max_size=3), st.integers(0, 3), st.data())
def test_so_is_that_of_a_chain(names: list[str], low: int, data: st.DataObject) -> None:
    """Unless capture refuses it, or eager."""
    high = low + data.draw(st.integers(4, 8))
    example = data.draw(st.integers(max(low, 2), high))
    assume(result(Chain(names), torch.rand(example, 4)) is not None)
    with suppress(pipeline.CaptureError):
        stated_sizes_are_taken(names, low, example, high)


def test_a_constant_that_the_model_makes_of_sizes_is_no_promise() -> None:
    """A loop over a quotient has as many turns as in the example: what is left of the range is said."""

    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """As many times as there are rows of windows."""
            for _ in range(int(x.shape[0] * x.shape[1] / x.shape[1])):
                x = x + 1
            return x

    dims = ({0: Dim("n", min=1, max=4), 1: Dim("m", min=1, max=4)},)
    with pytest.raises(pipeline.CaptureError, match="2"):
        pipeline.capture(Loop(), (torch.randn(2, 3),), dynamic_shapes=dims)


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize(
    "entry", [Dim("n", min=2, max=4), Dim.AUTO(min=2, max=4), Dim.DYNAMIC(min=2, max=4), 2 * Dim("m", min=1, max=2)]
)
@pytest.mark.parametrize("device", [None, "cuda"])
def test_an_example_outside_of_its_range_is_refused(size: int, entry: Any, device: str | None) -> None:
    says = rf"input x\['a'\] has size {size} in dimension 1, but .* allows 2 to 4"

    class Takes(torch.nn.Module):
        def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
            """A sum."""
            return x["a"] + 1

    with pytest.raises(pipeline.CaptureError, match=says):
        given = {"a": torch.randn(3, size)}
        pipeline.capture(Takes(), (given,), dynamic_shapes=({"a": {1: entry}},), device=device)
